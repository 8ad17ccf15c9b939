"""Runs as their hosts' spools tell them: choosing the run a command means, its state, its status as JSON. Pure.

Not here: asking the hosts (api.py), who failed first (runs/verdict.py).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from clusterddp.errors import RunError
from clusterddp.runs.folders import workdirs
from clusterddp.runs.notices import following_notices, output_notices
from clusterddp.runs.verdict import Verdict, judge, recovered

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

Nodes = list[dict[str, Any]]
ENDED = {"succeeded", "failed", "stopped", "lost"}
_NEVER = 1 << 62


@dataclass(frozen=True, kw_only=True, slots=True)
class RunView:
    """One run as the hosts tell it: the nodes of its last attempt, and hosts of its plan that did not answer.

    ``earlier``: the nodes of the attempts before, the oldest first. ``spares``: those that wait for a relaunch.
    """

    run: str
    nodes: tuple[Mapping[str, Any], ...]
    silent: tuple[str, ...] = ()
    earlier: tuple[Mapping[str, Any], ...] = ()
    spares: tuple[Mapping[str, Any], ...] = ()

    @property
    def id(self) -> str:
        """The run id, as of a ``Run``."""
        return self.run

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
    def spools(self) -> dict[int, dict[str, str]]:
        """Each attempt's folder on each of its hosts: attempt → host → spool, in order."""
        found: dict[int, dict[str, str]] = {}
        for node in (*self.earlier, *self.nodes):
            found.setdefault(int(node["attempt"]), {})[node["host"]] = node["spool"]
        return found

    @property
    def current(self) -> dict[str, str]:
        """The last attempt's folder on each host; empty for one that did not answer."""
        return self.spools[self.attempt] | dict.fromkeys(self.silent, "")

    @property
    def live(self) -> bool:
        """Whether any node still runs or starts."""
        return any(node["state"] not in ENDED for node in self.nodes)

    @property
    def ended_ns(self) -> int | None:
        """When the last node ended, by the operator's clock."""
        times = [node["exit"]["ended"] - node["clock_offset_ns"] for node in self.nodes if node["exit"]]
        return max(times) if times and not self.live else None

    @property
    def last_output_ns(self) -> int | None:
        """When any worker of the last attempt printed last, by the operator's clock; None if none ever has."""
        return max((time_ns for node in self.nodes if (time_ns := _last_output(node)) is not None), default=None)

    def notices(self) -> list[str]:
        """What the user must know besides of the last attempt: of its output, and of what follows it."""
        return [*output_notices(self.nodes), *following_notices(self.nodes, live=self.live)]

    def verdict(self) -> Verdict | None:
        """How it ended; None while it lives."""
        if self.live:
            return None
        verdict = judge(self.nodes, self.silent)
        return replace(verdict, notices=(*verdict.notices, *self.notices()))

    def state(self) -> str:
        """The contract's word for the run as a whole."""
        verdict = self.verdict()
        if verdict:
            return verdict.state
        states = {node["state"] for node in self.nodes}
        return next((state for state in ("running", "starting") if state in states), "queued")

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
            "remedy": (verdict.remedy or None) if verdict else None,
            "notices": self.notices(),
            "workdirs": workdirs(record),
        }
        value.update({key: record.get(key) for key in ("script", "argv", "code", "git", "operator", "versions")})
        if hosts:
            failures = [*recovered(self.nodes, self.earlier), *(verdict.failures if verdict else ())]
            value["failures"] = [failure.to_json() for failure in failures]
            value["last_output"] = _seconds(self.last_output_ns)
            value["hosts"] = [_host_json(node) for node in self.nodes]
            value["hosts"] += [self._silent_json(name) for name in self._absent()]
            value["spares"] = [_host_json(node) for node in self.spares]
        return value

    def _absent(self) -> list[str]:
        """Hosts of the plan that did not answer, or were not asked."""
        answered = {node["host"] for node in self.nodes}
        return [name for name in self.record.get("hosts", ()) if name not in answered]

    def _silent_json(self, name: str) -> dict[str, Any]:
        """A host that did not answer, as the others heard of it last over run control."""
        host: dict[str, Any] = {"name": name, "state": "unreachable", "ranks": [], "pids": [], "gpus": []}
        host["last_output"] = None
        for node in self.nodes:
            word = ((node.get("peers") or {}).get("nodes") or {}).get(name)
            if word and word["attempt"] == self.attempt:
                return {**host, "told": {"by": node["host"], "state": word["state"], "seconds_ago": word["age"]}}
        return host


def run_views(nodes: Iterable[Mapping[str, Any]], unreachable: Sequence[str] = ()) -> list[RunView]:
    """Every run, oldest first. ``unreachable``: hosts of the inventory that did not answer."""
    by_run: dict[str, Nodes] = {}
    for node in nodes:
        by_run.setdefault(node["run"], []).append(dict(node))
    found = []
    for run, mine in by_run.items():
        mine.sort(key=lambda node: (int(node["attempt"]), int(node["node_rank"])))
        taking = [node for node in mine if not node.get("standby")] or mine
        last = taking[-1]["attempt"]
        latest = [node for node in taking if node["attempt"] == last]
        taking_part = {node["host"] for node in latest}
        silent = [name for name in latest[0]["record"].get("hosts", ()) if name in unreachable]
        view = RunView(
            run=run,
            nodes=tuple(latest),
            silent=tuple(silent),
            earlier=tuple(taking[: -len(latest)]),
            spares=tuple(node for node in mine if node.get("standby") and node["host"] not in taking_part),
        )
        found.append(view)
    return sorted(found, key=lambda view: view.record.get("started") or _NEVER)


@dataclass(frozen=True, kw_only=True, slots=True)
class Requester:
    """Who gives a command: ``user@machine``, and the id of the project it is given in.

    They own a run that they started or that is the project's: the same person at another machine, or a colleague who
    shares the project's id, may end it by its name. Any other's run on the same account takes its full id.
    """

    operator: str
    project: str | None

    def owns(self, view: RunView) -> bool:
        """Whether they own the run."""
        record = view.record
        return record.get("operator") == self.operator or self.shares_project(view)

    def shares_project(self, view: RunView) -> bool:
        """Whether the run is of their project."""
        return self.project is not None and view.record.get("project") == self.project


def choose_run(found: Sequence[RunView], reference: str | None, *, to_end_by: Requester | None = None) -> RunView:
    """The run that ``reference`` means: an id, a unique prefix of one, or a name (its newest).

    Without a reference: the only live run; else, for reading, the last one.

    Args:
        found: All runs, oldest first.
        reference: What the user wrote.
        to_end_by: Who wants to end it: their own runs are meant then, unless the full id names another. None: reading.

    Raises:
        RunError: none is meant, or several.
    """
    exact = [view for view in found if view.run == reference]
    if exact:
        return exact[-1]
    if to_end_by is None:
        return _last(found) if reference is None else _named(found, reference)
    mine = [view for view in found if to_end_by.owns(view)]
    theirs = [view for view in found if view not in mine]
    if reference is None:
        return _only_live(mine, theirs)
    if not any(_matches(view, reference) for view in mine):
        for view in theirs:
            if _matches(view, reference):
                message = f"{view.run} is a run of {view.record.get('operator')}"
                raise RunError(message, remedy="its full id stops it all the same")
    return _named(mine, reference)


def _matches(view: RunView, reference: str) -> bool:
    return view.record.get("name") == reference or view.run.startswith(reference)


def _last(found: Sequence[RunView]) -> RunView:
    live = [view for view in found if view.live]
    if not found:
        raise RunError("no run on these hosts")
    return (live or found)[-1]


def _only_live(mine: Sequence[RunView], theirs: Sequence[RunView]) -> RunView:
    live = [view for view in mine if view.live]
    if len(live) == 1:
        return live[0]
    if live:
        raise RunError(f"several runs are live: {_listed(live)}", remedy="name one, or `stop --all` ends all")
    others = [view for view in theirs if view.live]
    if others:
        listed = ", ".join(f"{view.run} of {view.record.get('operator')}" for view in others)
        raise RunError(f"no run of yours is live here, but {listed}", remedy="a full id stops it all the same")
    raise RunError("no run is live on these hosts")


def _named(found: Sequence[RunView], reference: str) -> RunView:
    named = [view for view in found if view.record.get("name") == reference]
    prefixed = [view for view in found if view.run.startswith(reference)]
    if named:
        return named[-1]
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
        "last_output": _seconds(_last_output(node)),
    }


def _last_output(node: Mapping[str, Any]) -> int | None:
    told = node.get("last_output")
    return None if told is None else int(told) - node["clock_offset_ns"]


def _round(nodes: Sequence[Mapping[str, Any]]) -> int:
    """How often the workers were started again in this attempt: as they were told, else by the host that saw most."""
    events = [event for node in nodes for event in node.get("events", ()) if event["event"] == "worker_started"]
    told = [event["round"] for event in events if event.get("round") is not None]
    return max(told or [event["start"] for event in events], default=0)


def _seconds(time_ns: int | None) -> float | None:
    return None if time_ns is None else round(time_ns / 1e9, 3)
