"""Make the launch plan: inventory × facts × options → one torchrun argv for all hosts, and a small env for each."""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from clusterddp.errors import PlanError
from clusterddp.inventory.variables.variable_table import VARIABLES
from clusterddp.launch.options import DECLARED
from clusterddp.remote.shared.run.host_settings import HostSettings
from clusterddp.remote.shared.run.node_env import (
    HEARTBEAT_TIMEOUT,
    STATIC,
    TIGHT_HEARTBEAT_TIMEOUT,
    Node,
)
from clusterddp.remote.shared.run.plan import BACKEND as PLUGIN
from clusterddp.remote.shared.run.plan import PORT_PLACEHOLDER, NodePlan, Peer, StorePlan, plan_for_node
from clusterddp.remote.shared.run.run_settings import RunSettings
from clusterddp.remote.shared.run.unplaced_plan import torch_release
from clusterddp.remote.shared.text.secret_names import is_secret
from clusterddp.text.folding import folded_names

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from clusterddp.inventory import HostEntry
    from clusterddp.launch.options import RunOptions
    from clusterddp.remote.shared.run.run_record import RunRecord

MODULE = "torch.distributed.run"
SECRET = "<secret>"  # noqa: S105 - stands in dry runs where a value would
LOOPBACK = "127."
LEASE_TIME = 60.0  # seconds without an operator after which a run with --on-disconnect stop ends
CLOSES_ON_RESTART = (2, 3)  # the torch version whose agents close c10d when they restart workers


@dataclass(frozen=True, kw_only=True, slots=True)
class LaunchPlan:
    """Everything needed to start a run. ``nodes[0]`` has the rendezvous store; ``spares`` wait for a relaunch."""

    shared: NodePlan  # what the plans of all nodes have in common; ``node_plan`` completes it for one of them
    nodes: tuple[Node, ...]
    spares: tuple[Node, ...] = ()

    @property
    def run(self) -> str:
        """Return the run's id."""
        return self.shared.run

    @property
    def attempt(self) -> int:
        """Return the number of the attempt."""
        return self.shared.attempt

    @property
    def record(self) -> RunRecord:
        """Return the run's record."""
        return self.shared.record

    def with_record(self, **fields: Any) -> LaunchPlan:
        """Return the plan with other values in these fields of the run's record."""
        return replace(self, shared=self.shared._replace(record=self.record._replace(**fields)))

    @property
    def all_nodes(self) -> tuple[Node, ...]:
        """Return the nodes, then the spares, in order of their member indices."""
        return (*self.nodes, *self.spares)

    @property
    def all_secrets(self) -> set[str]:
        """Return the names of the secrets that any node needs."""
        return {*self.shared.secrets, *(name for node in self.all_nodes for name in node.secrets)}

    @property
    def common(self) -> NodePlan:
        """Return what the plans of all nodes have in common; it names all nodes."""
        return self.shared._replace(peers=tuple(map(Peer.of, self.all_nodes)))

    def node_plan(self, position: int, common: NodePlan | None = None) -> NodePlan:
        """Return the plan of one node or spare, as the host's ``start`` takes it; ``common`` spares making it anew."""
        node = self.all_nodes[position]
        return plan_for_node(common or self.common, node, position)._replace(
            store=StorePlan(node.address) if position == 0 else None,
            secrets=tuple(sorted({*self.shared.secrets, *node.secrets})),
            standby=position >= len(self.nodes),
        )

    def render(self) -> str:
        """Return the plan as commands that could be pasted, one block per host; secrets appear by name only."""
        common = self.common
        return "\n".join(self._render_node(rank, common) for rank in range(len(self.nodes)))

    def _render_node(self, rank: int, common: NodePlan) -> str:
        plan, node = self.node_plan(rank, common), self.nodes[rank]
        values = dict(plan.env)
        if plan.settings.rdzv_backend == STATIC:
            values["PET_NODE_RANK"] = str(rank)
        if rank == 0:
            values["PET_RDZV_CONF"] = values["PET_RDZV_CONF"].replace("is_host=false", "is_host=true")
        shown = {name: SECRET if is_secret(name, value) else _shell_word(value) for name, value in values.items()}
        exports = [f"export {name}={value}" for name, value in sorted(shown.items())]
        exports += [f"export {name}={SECRET}" for name in plan.secrets]
        index = plan.argv.index("--rdzv-endpoint") + 1
        endpoint = plan.argv[index].replace(PORT_PLACEHOLDER, str(self.nodes[0].settings.ports[0]))
        argv = (*plan.argv[:index], endpoint, *plan.argv[index + 1 :])
        # Only clusterddp provides the plugin.
        argv = tuple("c10d" if argument == PLUGIN else argument for argument in argv)
        command = " ".join(map(_shell_word, (node.python, *argv)))
        lines = [f"# node {rank}: {node.host}", f"cd {shlex.quote(node.cwd)}", *node.settings.setup, *exports, command]
        return "\n".join(lines) + "\n"


def _shell_word(text: str) -> str:
    """Return a text as one word of a command; zsh takes ``=NAME``, first or behind a colon, for a program's path."""
    return f"'{text}'" if shlex.quote(text) == text and ":=" in f":{text}" else shlex.quote(text)


def run_settings(options: RunOptions, backend: str) -> RunSettings:
    """Return what hosts need of a run's options; ``backend``: the chosen rendezvous."""
    shared = {name: getattr(options, name) for name in RunSettings._fields if name in DECLARED}
    least, most = options.nnodes if options.nnodes and options.elastic else (1, 1)
    return RunSettings(**shared)._replace(
        rdzv_backend=backend,
        elastic=options.elastic,
        min_nodes=least,
        max_nodes=most,
        lease=LEASE_TIME if options.on_disconnect == "stop" else None,
    )


def host_settings(entry: HostEntry) -> HostSettings:
    """Return what a host needs of its variables."""
    return HostSettings(**{name: getattr(entry, name) for name in HostSettings._fields if name in VARIABLES})


def make_plan(
    *,
    run: str,
    nodes: Sequence[Node],  # the hosts that start, in the order of their ranks
    spares: Sequence[Node] = (),  # the hosts that wait for a relaunch
    options: RunOptions,  # the run's; torchrun's arguments follow from them
    settings: RunSettings,
    secrets: Collection[str] | None = None,  # names, if they are not those of the options
    record: RunRecord,  # complete but for the numbers of workers and nodes
) -> LaunchPlan:
    """Make the plan of a run's first attempt; the supervisors derive those of later attempts from it."""
    if not nodes:
        raise PlanError("no host takes part: every host of the inventory has a clusterddp_role other than node")
    count = len(nodes)
    spread = _spread_loopback([*nodes, *spares])
    nodes, spares = spread[:count], spread[count:]
    if not settings.elastic:
        settings = settings._replace(min_nodes=count, max_nodes=count)
    if settings.rdzv_backend == "c10d":
        _check_clocks(spread)
    workers = sum(node.nproc for node in nodes)
    shared = NodePlan(
        run=run,
        attempt=1,
        nnodes=count,
        argv=_torchrun_argv(options, settings, f"{run}.1", nodes),
        worker_argv=_interpreter_argv(options, settings),
        world_size=workers,
        secrets=tuple(options.secret if secrets is None else secrets),
        record=record._replace(world_size=workers, nnodes=count, min_nodes=settings.min_nodes),
        members=tuple(range(count)),
        settings=settings._replace(tight=clock_spread(spread)[0] < TIGHT_HEARTBEAT_TIMEOUT / 3),
        # Each node has its own.
        node="", node_rank=0, host="", python="", env={}, workdir="", cwd="", run_dir="", nproc=0, store=None,
        clock_offset_ns=0, clock_error_ns=0,
    )  # fmt: skip
    return LaunchPlan(shared=shared, nodes=tuple(nodes), spares=tuple(spares))


def _torchrun_argv(options: RunOptions, settings: RunSettings, rdzv_id: str, nodes: Sequence[Node]) -> tuple[str, ...]:
    return (
        "-m", MODULE,
        "--nnodes", f"{settings.min_nodes}:{settings.max_nodes}" if settings.elastic else str(len(nodes)),
        "--rdzv-id", rdzv_id,
        "--rdzv-backend", settings.rdzv_backend,
        "--rdzv-endpoint", f"{_bracket_ipv6(nodes[0].address)}:{PORT_PLACEHOLDER}",
        "--max-restarts", str(options.max_restarts),
        *options.torchrun_arg,
        *(["-m"] if options.module else []),
        *_escape(options.script),
        *(["--local-rank=${local_rank}"] if options.pass_local_rank else []),
        *_escape(*options.args),
    )  # fmt: skip


def _interpreter_argv(options: RunOptions, settings: RunSettings) -> tuple[str, ...]:
    """Return what torchrun gives a worker's interpreter; nothing if that may differ between workers."""
    if settings.program or options.pass_local_rank or options.torchrun_arg:
        return ()
    return ("-u", *(["-m"] if options.module else []), options.script, *options.args)


def _escape(*arguments: str) -> list[str]:
    """Escape words so that a worker gets them unchanged: torchrun replaces ``$local_rank``, and ``$$`` by $."""
    replaced = re.compile(r"\$\$|\$\{?local_rank")
    return [argument.replace("$", "$$") if replaced.search(argument) else argument for argument in arguments]


def clock_spread(nodes: Sequence[Node]) -> tuple[float, str, str]:
    """Return the maximum difference between two hosts' clocks in seconds, and those two hosts."""
    early = min(nodes, key=lambda node: node.clock_offset_ns - node.clock_error_ns)
    late = max(nodes, key=lambda node: node.clock_offset_ns + node.clock_error_ns)
    spread = late.clock_offset_ns + late.clock_error_ns - early.clock_offset_ns + early.clock_error_ns
    return (0.0 if early is late else spread / 1e9), early.host, late.host


def _check_clocks(nodes: Sequence[Node]) -> None:
    """Refuse clocks that differ too much for c10d, which would time out a running host and shrink the job."""
    spread, early, late = clock_spread(nodes)
    if spread >= HEARTBEAT_TIMEOUT / 3:
        raise PlanError(
            f"the clocks of {early} and {late} differ by {spread:.1f} s, and torchrun's c10d takes hosts for dead then",
            remedy="set them by NTP, or install torch 2.6 or newer on every host: then it does not matter",
        )


def _spread_loopback(nodes: Sequence[Node]) -> list[Node]:
    """Give nodes that share the loopback an address each, because torchrun orders ranks by address, then by pid."""
    shared = [node for node in nodes if node.address.startswith(LOOPBACK)]
    if len(shared) < 2:
        return list(nodes)
    if len(shared) < len(nodes):
        names = folded_names([node.host for node in shared])
        raise PlanError(
            f"{names}: a loopback address cannot serve hosts on several machines", remedy="set clusterddp_address"
        )
    return [node._replace(address=f"127.0.1.{100 + rank}") for rank, node in enumerate(nodes)]


def _bracket_ipv6(address: str) -> str:
    return f"[{address}]" if ":" in address else address


def predicted_ranks(nodes: Sequence[Node], backend: str) -> dict[str, tuple[int, int]]:
    """Return the first and last rank of each host: in inventory order, or for c10d in order of addresses as text."""
    ranks = {}
    first = 0
    by_address = sorted(_spread_loopback(nodes), key=lambda node: node.address)
    for node in by_address if backend == "c10d" else nodes:
        ranks[node.host] = (first, first + node.nproc - 1)
        first += node.nproc
    return ranks


def check_restarts(max_restarts: int, backend: str, torch_versions: Mapping[str, str]) -> None:
    """Refuse restarts that cannot work: torch 2.3's agents close c10d for all hosts when they end their workers."""
    closing = [host for host, version in torch_versions.items() if torch_release(version) == CLOSES_ON_RESTART]
    if max_restarts and backend == "c10d" and closing and len(torch_versions) > 1:
        raise PlanError(
            f"{closing[0]} has torch {torch_versions[closing[0]]}, whose c10d cannot start workers again",
            remedy="take --relaunch in place of --max-restarts, or another torch",
        )
