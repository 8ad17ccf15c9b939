"""One run, live or past: its lines, its status, its end.

The hosts hold its truth; this holds how to ask them. Not here: starting one (api.py).
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Protocol

from clusterddp import runs
from clusterddp.errors import RunError
from clusterddp.fanout import Outcome, each
from clusterddp.logs import LogLine, Merge, Position, Selection, lines

if TYPE_CHECKING:
    from collections.abc import Callable, Container, Iterable, Iterator, Mapping

    from clusterddp.fanout import Host
    from clusterddp.inventory import Inventory
    from clusterddp.remote.wire import Frame
    from clusterddp.verdict import Verdict

GRACE = 30.0  # seconds between SIGTERM and SIGKILL when a run is stopped
STOP_SLACK = 60.0  # seconds beyond the grace that a host has for its proof


@dataclass(frozen=True, kw_only=True, slots=True)
class Proof:
    """What a stop found on one host: ``found`` processes, ``survivors`` as (pid, command line)."""

    host: str
    found: int
    survivors: tuple[tuple[int, str], ...]
    error: str = ""

    @property
    def proved_empty(self) -> bool:
        """Whether nothing of the run is left on the host."""
        return not self.survivors and not self.error


class Hosts(Protocol):
    """What a run needs of its Cluster."""

    inventory: Inventory

    def host(self, name: str) -> Host:
        """The open host of that name."""

    def gather(self, run: str, hosts: Container[str] | None = None) -> tuple[list[dict[str, Any]], list[str]]:
        """The run's nodes as the hosts tell them, and the hosts that do not answer."""


@dataclass
class Run:
    """One run, live or past. The hosts hold its truth; this holds how to ask them."""

    cluster: Hosts
    id: str
    attempt: int
    spools: Mapping[str, str]
    record: Mapping[str, Any] = field(repr=False)

    def view(self) -> runs.RunView:
        """The run as its hosts tell it now.

        Raises:
            RunError: no host that answers knows it.
            HostError, HostsError: none of its hosts answers.
        """
        own = {*self.spools, *self.record.get("hosts", ())}
        nodes, silent = self.cluster.gather(self.id, own)
        for view in runs.views(nodes, silent):
            if view.run == self.id:
                return view
        raise RunError(f"run {self.id} is on no host that answers")

    def status(self) -> dict[str, Any]:
        """The contract's status object."""
        return self.view().to_json()

    def verdict(self) -> Verdict | None:
        """How it ended; None while it lives."""
        return self.view().verdict()

    def logs(self, selection: Selection | None = None, *, follow: bool = False) -> Iterator[LogLine]:
        """Its lines: the past in order of time, then, with ``follow``, as they come until it ends.

        Args:
            selection: Which lines; all by default.
            follow: Go on while it runs (in place of ``selection.follow``).
        """
        chosen = replace(selection or Selection(), follow=follow, timed=True)
        with Merge(self.spools, self.tail(chosen), follow=follow) as merge:
            yield from lines(merge)

    def tail(self, selection: Selection) -> Callable[[str, Position], Iterator[Frame]]:
        """What opens a host's stream of the selected lines at a position; a Merge calls it, again after a break."""
        return lambda host, at: self.cluster.host(host).stream("tail", selection.args(self.spools[host], at))

    def stop(
        self, *, grace: float = GRACE, reason: str = "by another command", hosts: Iterable[str] = ()
    ) -> list[Proof]:
        """End the run on every host (or on ``hosts``), and prove that nothing of it is left.

        Args:
            grace: Seconds between SIGTERM and SIGKILL.
            reason: What the run's record will say.
            hosts: Only these.
        """
        names = set(hosts) or set(self.spools)
        entries = [entry for entry in self.cluster.inventory.hosts if entry.name in names]
        outcomes = each(entries, lambda entry: self._stop_on(entry.name, grace, reason))
        missing = [Proof(host=name, found=0, survivors=(), error="not in the inventory") for name in names]
        missing = [proof for proof in missing if proof.host not in {entry.name for entry in entries}]
        return [outcome.value or _unproved(outcome) for outcome in outcomes] + missing

    def _stop_on(self, name: str, grace: float, reason: str) -> Proof:
        order = {"run": self.id, "hosts": [name], "grace": grace, "reason": reason}
        answer = self.cluster.host(name).call("stop", order, timeout=grace + STOP_SLACK)
        survivors = [(left["pid"], left["command"]) for node in answer["nodes"] for left in node["survivors"]]
        found = sum(node["found"] for node in answer["nodes"])
        return Proof(host=name, found=found, survivors=tuple(survivors))


def _unproved(outcome: Outcome[Proof]) -> Proof:
    return Proof(host=outcome.name, found=0, survivors=(), error=str(outcome.error))
