"""What the hosts' spools say of runs, put together: which run is meant, its state, its status as JSON. Pure.

Not here: asking the hosts (api.py), who failed first (verdict.py).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from clusterddp.errors import RunError
from clusterddp.verdict import Verdict, judge

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

Nodes = list[dict[str, Any]]
ENDED = {"succeeded", "failed", "stopped", "lost"}
_NEVER = 1 << 62


@dataclass(frozen=True, kw_only=True, slots=True)
class RunView:
    """One run as the hosts tell it: the nodes of its last attempt, and hosts of its plan that did not answer."""

    run: str
    nodes: tuple[Mapping[str, Any], ...]
    silent: tuple[str, ...] = ()

    @property
    def record(self) -> Mapping[str, Any]:
        """What the run wrote down of itself when it started."""
        record: Mapping[str, Any] = self.nodes[0]["record"]
        return record

    @property
    def name(self) -> str:
        """The run's name, or its id."""
        return str(self.record.get("name") or self.run)

    @property
    def attempt(self) -> int:
        """The last attempt's number."""
        return int(self.nodes[0]["attempt"])

    @property
    def live(self) -> bool:
        """Whether any node still runs or starts."""
        return any(node["state"] not in ENDED for node in self.nodes)

    @property
    def ended_ns(self) -> int | None:
        """When the last node ended, by the operator's clock."""
        times = [node["exit"]["ended"] - node["clock_offset_ns"] for node in self.nodes if node["exit"]]
        return max(times) if times and not self.live else None

    def verdict(self) -> Verdict | None:
        """How it ended; None while it lives."""
        return None if self.live else judge(self.nodes, self.silent)

    def state(self) -> str:
        """The contract's word for the run as a whole."""
        verdict = self.verdict()
        if verdict:
            return verdict.state
        return "running" if any(node["state"] == "running" for node in self.nodes) else "starting"

    def to_json(self, *, hosts: bool = True) -> dict[str, Any]:
        """The contract's status object; without ``hosts`` the one of ``runs``."""
        verdict = self.verdict()
        record = self.record
        value: dict[str, Any] = {
            "run": self.run,
            "name": record.get("name"),
            "state": self.state(),
            "attempt": self.attempt,
            "round": _round(self.nodes),
            "world_size": record.get("world_size"),
            "started": _seconds(record.get("started")),
            "ended": _seconds(self.ended_ns),
            "exit_code": verdict.exit_code if verdict else None,
            "verdict": verdict.line if verdict else None,
        }
        value.update({key: record.get(key) for key in ("script", "argv", "code", "git", "operator", "versions")})
        if hosts:
            value["hosts"] = [_host_json(node) for node in self.nodes]
            value["hosts"] += [
                {"name": name, "state": "unreachable", "ranks": [], "pids": [], "gpus": []} for name in self.silent
            ]
        return value


def views(nodes: Iterable[Mapping[str, Any]], unreachable: Sequence[str] = ()) -> list[RunView]:
    """Every run, oldest first. ``unreachable``: hosts of the inventory that did not answer."""
    by_run: dict[str, Nodes] = {}
    for node in nodes:
        by_run.setdefault(node["run"], []).append(dict(node))
    found = []
    for run, mine in by_run.items():
        last = max(node["attempt"] for node in mine)
        latest = sorted((n for n in mine if n["attempt"] == last), key=lambda n: int(n["node_rank"]))
        silent = [name for name in latest[0]["record"].get("hosts", ()) if name in unreachable]
        found.append(RunView(run=run, nodes=tuple(latest), silent=tuple(silent)))
    return sorted(found, key=lambda view: view.record.get("started") or _NEVER)


def choose(found: Sequence[RunView], reference: str | None, *, reading: bool) -> RunView:
    """The run that ``reference`` means: an id, a unique prefix of one, or a name (its newest).

    Without a reference: the only live run; else, for ``reading``, the last one.

    Raises:
        RunError: none is meant, or several.
    """
    if reference is None:
        live = [view for view in found if view.live]
        if len(live) == 1 or (reading and live):
            return live[-1]
        if live:
            raise RunError(f"several runs are live: {_listed(live)}", remedy="name one, or --all")
        if reading and found:
            return found[-1]
        raise RunError("no run on these hosts" if reading else "no run is live on these hosts")
    exact = [view for view in found if view.run == reference]
    named = [view for view in found if view.record.get("name") == reference]
    prefixed = [view for view in found if view.run.startswith(reference)]
    if exact or named:
        return (exact or named)[-1]
    if len(prefixed) == 1:
        return prefixed[0]
    if prefixed:
        raise RunError(
            f"{reference!r} is the beginning of several runs: {_listed(prefixed)}", remedy="write more of it"
        )
    raise RunError(f"no run {reference!r} on these hosts", remedy="`clusterddp runs --all` lists them")


def _listed(found: Sequence[RunView]) -> str:
    return ", ".join(f"{view.run} ({view.record['name']})" if view.record.get("name") else view.run for view in found)


def _host_json(node: Mapping[str, Any]) -> dict[str, Any]:
    events = node.get("events", ())
    starts = [event for event in events if event["event"] == "worker_started"]
    last = max((event["start"] for event in starts), default=0)
    ranks = sorted(event["rank"] for event in starts if event["start"] == last)
    return {
        "name": node["host"],
        "state": node["state"],
        "ranks": ranks,
        "pids": node.get("pids", []),
        "gpus": node["record"].get("gpus", {}).get(node["host"], []),
    }


def _round(nodes: Sequence[Mapping[str, Any]]) -> int:
    """How often the workers were started again in this attempt, by the host that saw most."""
    starts = [
        event["start"] for node in nodes for event in node.get("events", ()) if event["event"] == "worker_started"
    ]
    return max(starts, default=0)


def _seconds(time_ns: int | None) -> float | None:
    return None if time_ns is None else round(time_ns / 1e9, 3)
