"""The facts of a job's node that its plan needs: asked as the operator asks a host, within what Slurm allots."""

import ipaddress
from typing import Any, Dict, List, Mapping, NamedTuple, Optional, Sequence, Tuple

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

    ``preferred`` is an address in a network that is preferred among equals: the one with Slurm's own traffic. Raises
    Refused if they are in no network together.
    """
    if len(nodes) == 1:
        return [(*nodes[0].addresses, Address("127.0.0.1", "lo", ""))[0]]
    shared = set.intersection(*({one.network for one in node.addresses} for node in nodes))
    # With one address on two nodes, as that of a container bridge, a network connects nothing.
    shared = {network for network in shared if len({one.address for one in _of_network(nodes, network)}) == len(nodes)}
    if not shared:
        networks = "; ".join(
            "%s: %s" % (node.host, ", ".join(a.network for a in node.addresses) or "none") for node in nodes
        )
        raise Refused("no network holds all nodes (%s)" % networks, "set clusterddp_interface")

    def preference(network: str) -> Tuple[int, bool, bool, str]:
        speeds = [one.speed for node in nodes for one in node.addresses if one.network == network]
        subnet = ipaddress.ip_network(network)
        return min(speeds), bool(preferred) and ipaddress.ip_address(preferred) in subnet, subnet.version == 4, network

    best = max(shared, key=preference)
    return _of_network(nodes, best)


def _of_network(nodes: Sequence[NodeFacts], network: str) -> List[Address]:
    """Each node's first address in a network that all are in."""
    return [next(one for one in node.addresses if one.network == network) for node in nodes]
