"""The launch plan: inventory × facts × options → one torchrun argv for all hosts, and a small env for each.

Pure: no files, no network, no clock. ``--dry-run`` prints a plan; launchers carry it out.
"""

from __future__ import annotations

import shlex
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from clusterddp.errors import PlanError, UsageError
from clusterddp.remote.launch import PORT_TO_COME
from clusterddp.remote.nodeenv import PROBED, node_environment

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

MODULE = "torch.distributed.run"
# torchrun's options that the plan itself sets; giving one by --torchrun-arg would contradict it.
OWNED = {
    "--nnodes", "--nproc-per-node", "--rdzv-backend", "--rdzv-endpoint", "--rdzv-id", "--rdzv-conf", "--standalone",
    "--node-rank", "--master-addr", "--master-port", "--local-addr", "--log-dir", "-r", "--redirects", "-t", "--tee",
    "--max-restarts", "--no-python", "--module", "-m", "--run-path", "--logs-specs",
}  # fmt: skip
SECRET = "<secret>"  # noqa: S105 - stands in dry runs where a value would
LOOPBACK = "127."


@dataclass(frozen=True, kw_only=True, slots=True)
class LaunchOptions:
    """What the user asked for, already parsed."""

    script: str
    args: tuple[str, ...] = ()
    module: bool = False
    name: str | None = None
    env: Mapping[str, str]
    secrets: tuple[str, ...] = ()
    max_restarts: int = 0
    rdzv_backend: str = "c10d"
    torchrun_args: tuple[str, ...] = ()
    debug_comm: bool = False
    time_limit: float | None = None

    def __post_init__(self) -> None:
        for given in self.torchrun_args:
            option = given.split("=")[0].replace("_", "-")
            if option in OWNED:
                raise UsageError(f"--torchrun-arg {given}: {option} is set by clusterddp itself")


@dataclass(frozen=True, kw_only=True, slots=True)
class Node:
    """One host's part in a run, by what was found out about it.

    ``address`` and ``interface`` are of the data plane; ``devices`` is CUDA_VISIBLE_DEVICES or None for all.
    """

    host: str
    nproc: int
    address: str
    interface: str | None
    python: str
    setup: tuple[str, ...]
    env: Mapping[str, str]
    secrets: tuple[str, ...]
    ports: tuple[int, int]
    workdir: str
    cwd: str
    run_dir: str
    clock_offset_ns: int = 0
    clock_error_ns: int = 0
    devices: str | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class LaunchPlan:
    """All that is needed to start one attempt. ``nodes[0]`` has the rendezvous store."""

    run: str
    attempt: int
    argv: tuple[str, ...]
    nodes: tuple[Node, ...]
    options: LaunchOptions
    record: Mapping[str, Any]
    control_port: int | None = None

    @property
    def world_size(self) -> int:
        """Workers over all nodes."""
        return sum(node.nproc for node in self.nodes)

    def with_ports(self, store: int, control: int | None = None) -> LaunchPlan:
        """The plan once the rendezvous host has bound its ports; only the endpoint changes in the argv."""
        place = self.argv.index("--rdzv-endpoint") + 1
        endpoint = self.argv[place].replace(PORT_TO_COME, str(store))
        return replace(self, argv=(*self.argv[:place], endpoint, *self.argv[place + 1 :]), control_port=control)

    def node_json(self, rank: int) -> dict[str, Any]:
        """The plan of one node as the host's ``start`` takes it."""
        node = self.nodes[rank]
        store = {"address": node.address, "ports": list(node.ports)} if rank == 0 else None
        return {
            "run": self.run,
            "attempt": self.attempt,
            "node": f"{rank}-{node.host}",
            "node_rank": rank,
            "nnodes": len(self.nodes),
            "host": node.host,
            "argv": list(self.argv),
            "python": node.python,
            "setup": list(node.setup),
            "env": self.environment(rank),
            "yielding": sorted(PROBED - set(self.options.env) - set(node.env)),
            "workdir": node.workdir,
            "cwd": node.cwd,
            "run_dir": node.run_dir,
            "nproc": node.nproc,
            "world_size": self.world_size,
            "store": store,
            "control": {"address": self.nodes[0].address, "port": self.control_port},
            "secrets": sorted({*self.options.secrets, *node.secrets}),
            "clock_offset_ns": node.clock_offset_ns,
            "clock_error_ns": node.clock_error_ns,
            "time_limit": self.options.time_limit,
            "record": dict(self.record),
        }

    def environment(self, rank: int) -> dict[str, str]:
        """The variables of one node but for what only the host knows (its spool)."""
        node = self.nodes[rank]
        policy = {"run": self.run, "env": dict(self.options.env), "debug_comm": self.options.debug_comm}
        facts = {
            "host": node.host,
            "nproc": node.nproc,
            "address": node.address,
            "interface": node.interface,
            "run_dir": node.run_dir,
            "env": dict(node.env),
            "devices": node.devices,
        }
        return node_environment(policy, facts)

    def render(self) -> str:
        """The plan as commands that could be pasted, one block a host; secrets by name only.

        By hand there is no store beside the agents: the first one holds it, on the first port of the range.
        """
        plan = self.with_ports(self.nodes[0].ports[0])
        return "\n".join(plan._render_node(rank) for rank in range(len(self.nodes)))  # noqa: SLF001 - our own class

    def _render_node(self, rank: int) -> str:
        node = self.nodes[rank]
        hidden = sorted({*self.options.secrets, *node.secrets})
        values = self.environment(rank)
        if rank == 0:
            values["PET_RDZV_CONF"] = values["PET_RDZV_CONF"].replace("is_host=false", "is_host=true")
        exports = [f"export {name}={shlex.quote(value)}" for name, value in sorted(values.items())]
        exports += [f"export {name}={SECRET}" for name in hidden]
        command = " ".join(shlex.quote(word) for word in (node.python, *self.argv))
        lines = [f"# node {rank}: {node.host}", f"cd {shlex.quote(node.cwd)}", *node.setup, *exports, command]
        return "\n".join(lines) + "\n"


def make_plan(
    *, run: str, attempt: int, nodes: Sequence[Node], options: LaunchOptions, record: Mapping[str, Any]
) -> LaunchPlan:
    """The plan of one attempt.

    Raises:
        PlanError: no nodes, or a node's address cannot serve.
    """
    if not nodes:
        raise PlanError("no host takes part: every host of the inventory has a clusterddp_role other than node")
    nodes = _spread_loopback(nodes)
    endpoint = f"{_bracketed(nodes[0].address)}:{PORT_TO_COME}"
    argv = [
        "-m", MODULE,
        "--nnodes", str(len(nodes)),
        "--rdzv-id", f"{run}.{attempt}",
        "--rdzv-backend", options.rdzv_backend,
        "--rdzv-endpoint", endpoint,
        "--max-restarts", str(options.max_restarts),
        *options.torchrun_args,
        *(["-m"] if options.module else []),
        options.script,
        *options.args,
    ]  # fmt: skip
    size = {"world_size": sum(node.nproc for node in nodes), "nnodes": len(nodes)}
    return LaunchPlan(
        run=run, attempt=attempt, argv=tuple(argv), nodes=tuple(nodes), options=options, record={**record, **size}
    )


def _spread_loopback(nodes: Sequence[Node]) -> list[Node]:
    """Give nodes that share the loopback an address each: torchrun orders ranks by address, then by pid."""
    shared = [node for node in nodes if node.address.startswith(LOOPBACK)]
    if len(shared) < 2:
        return list(nodes)
    if len(shared) < len(nodes):
        names = ", ".join(node.host for node in shared)
        raise PlanError(
            f"{names}: a loopback address cannot serve hosts on several machines", remedy="set clusterddp_address"
        )
    return [replace(node, address=f"127.0.1.{100 + rank}") for rank, node in enumerate(nodes)]


def _bracketed(address: str) -> str:
    return f"[{address}]" if ":" in address else address


def predicted_ranks(nodes: Sequence[Node]) -> dict[str, tuple[int, int]]:
    """First and last rank each host will hold: torchrun's c10d orders nodes by their address as text."""
    ranks = {}
    first = 0
    for node in sorted(_spread_loopback(nodes), key=lambda node: node.address):
        ranks[node.host] = (first, first + node.nproc - 1)
        first += node.nproc
    return ranks
