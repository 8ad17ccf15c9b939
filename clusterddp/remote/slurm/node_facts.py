"""The facts of a job's node that its plan needs: asked as the operator asks a host, within what Slurm allots."""

import ipaddress
from typing import Any, Callable, Dict, List, Mapping, NamedTuple, Optional, Sequence, Tuple

from ..probes.facts import gather_facts
from ..shared.names.interfaces import UNKNOWN_SPEED, InterfaceAddress, is_virtual
from ..shared.probes.facts_records import FactsRequest, PythonQuery
from ..shared.schema.fields import Fields
from ..shared.schema.record import field, many, maybe, record
from ..shared.slurm.job_record import SlurmJob
from ..shared.text.counted import counted
from ..system.bootstrap import Refused


@record
class Address(NamedTuple):
    """An address of a host, and the network it is in."""

    address: str = field(Fields.text)
    interface: str = field(Fields.text)
    network: str = field(Fields.text)
    speed: int = field(Fields.number, default=0)  # Mbit/s; 0: not known


@record
class NodeFacts(NamedTuple):
    """What a node publishes about itself to the job's other nodes."""

    host: str = field(Fields.filename)
    python: str = field(Fields.text)
    torch: str = field(Fields.text)  # version
    python_version: str = field(Fields.text)
    nccl: Optional[str] = field(maybe(Fields.text))
    nproc: int = field(Fields.number)
    threads: int = field(Fields.number)
    gpus: Tuple[str, ...] = field(Fields.texts)
    addresses: Tuple[Address, ...] = field(many(Address))
    workdir: str = field(Fields.text, default="")
    attempts: int = field(Fields.number, default=0)  # how many there were before, as this node sees them
    key: str = field(Fields.text, default="")  # of run control: made by the first node
    more: Mapping[str, Any] = {}


def node_facts(job: SlurmJob, host: str, workdir: str, environment: Mapping[str, str]) -> NodeFacts:
    """The facts of this node.

    ``host`` is Slurm's name of it, ``workdir`` where the code is on it, and ``environment`` that of the step's task,
    with what Slurm gives this node. Raises Refused if it cannot train.
    """
    plan = job.plan
    python = PythonQuery(plan.host_settings.setup, dict(plan.settings.env), job.python, workdir)
    # Alike: a job gets other GPUs each time, and all nodes keep what torch says in one place.
    facts = gather_facts(FactsRequest(python, alike=True), job.state)
    torch: Dict[str, Any] = facts["torch"] or {}
    error = facts["python_error"] or torch.get("import_error")
    if error:
        raise Refused(str(error), "set clusterddp_python to the interpreter that has torch")
    nproc = job.nproc or worker_count(int(torch.get("device_count") or 0), environment)
    usable = int(facts["usable_cores"])
    cores = min(usable, _number_in(environment, "SLURM_CPUS_ON_NODE") or usable)
    return NodeFacts(
        host=host,
        python=str(facts["python"]),
        torch=str(torch.get("version") or ""),
        python_version=str(facts["python_version"]),
        nccl=None if torch.get("nccl") is None else str(torch["nccl"]),
        nproc=nproc,
        threads=max(1, cores // nproc),
        gpus=tuple(gpu.name for gpu in facts["gpus"]),
        addresses=tuple(usable_addresses(facts["addresses"], job.interface)),
        workdir=workdir,
    )


def worker_count(visible: int, environment: Mapping[str, str]) -> int:
    """How many workers a node has: one a GPU that torch sees there, else one; raises Refused."""
    allotted = _number_in(environment, "SLURM_GPUS_ON_NODE")
    if allotted and not visible:
        gpus = counted(allotted, "GPU")
        raise Refused("Slurm gives it %s and torch sees none" % gpus, "--nproc-per-node N says that it is meant")
    return visible or 1


def _number_in(environment: Mapping[str, str], name: str) -> int:
    value = environment.get(name, "")
    return int(value) if value.isdigit() else 0


def usable_addresses(interfaces: Sequence[InterfaceAddress], interface: Optional[str]) -> List[Address]:
    """The addresses by which other nodes may reach this one: of ``interface``, if the inventory names one.

    Raises Refused if that has none.
    """
    addresses = []
    for interface_address in interfaces:
        network = ipaddress.ip_interface("%s/%d" % (interface_address.address, interface_address.prefix))
        if (
            interface_address.up
            and not network.is_loopback
            and not network.is_link_local
            and interface in (None, interface_address.interface)
        ):
            addresses.append(
                Address(
                    interface_address.address,
                    interface_address.interface,
                    str(network.network),
                    interface_address.speed_mbit or UNKNOWN_SPEED,
                )
            )
    if not addresses and interface:
        raise Refused("it has no address on %s" % interface, "set clusterddp_interface to one that all nodes have")
    return addresses if interface else [one for one in addresses if not is_virtual(one.interface)] or addresses


def choose_addresses(nodes: Sequence[NodeFacts], preferred: str = "") -> List[Address]:
    """Each node's address for the job's own traffic: in the fastest network that all of them are in.

    If they are in none together, as where each has a network of its own and a router connects them, it is the address
    on the fastest interface whose name all have. ``preferred`` is an address in a network that is preferred among
    equals: the one with Slurm's own traffic. Raises Refused if there is neither.
    """
    if len(nodes) == 1:
        return [(*nodes[0].addresses, Address("127.0.0.1", "lo", ""))[0]]
    candidates = _with_common(nodes, lambda one: one.network) or _with_common(nodes, _interface_and_version)
    if not candidates:
        networks = "; ".join(
            "%s: %s" % (node.host, ", ".join(a.network for a in node.addresses) or "none") for node in nodes
        )
        raise Refused(
            "no network holds all nodes (%s)" % networks, "set clusterddp_interface to one that all nodes have"
        )

    def preference(addresses: Sequence[Address]) -> Tuple[int, bool, bool, str]:
        subnets = [ipaddress.ip_network(one.network) for one in addresses]
        is_slurms = bool(preferred) and any(ipaddress.ip_address(preferred) in subnet for subnet in subnets)
        return min(one.speed for one in addresses), is_slurms, subnets[0].version == 4, addresses[0].network

    return max(candidates, key=preference)


def _interface_and_version(one: Address) -> str:
    return "%s, IPv%d" % (one.interface, ipaddress.ip_address(one.address).version)


def _with_common(nodes: Sequence[NodeFacts], tag: Callable[[Address], str]) -> List[List[Address]]:
    """For each tag that an address of every node has: each node's first address with it.

    With one address on two nodes, as that of a container bridge, a network connects nothing, and is left out.
    """
    shared = set.intersection(*({tag(one) for one in node.addresses} for node in nodes))
    found = [[next(one for one in node.addresses if tag(one) == common) for node in nodes] for common in sorted(shared)]
    return [addresses for addresses in found if len({one.address for one in addresses}) == len(nodes)]
