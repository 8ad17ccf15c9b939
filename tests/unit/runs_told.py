"""Nodes as a host's ``runs`` operation describes them, for tests of the verdict and of runs.

Times are seconds after the run's start by the operator's clock; a node's own clock may be off.
"""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING, Any

from clusterddp.remote.shared.schema.record import read_record
from clusterddp.remote.shared.verdict.node_report import NodeReport
from clusterddp.runs.view.run_view import RunView

if TYPE_CHECKING:
    from collections.abc import Iterable

    from clusterddp.remote.shared.verdict.failures import Evidence
    from clusterddp.remote.shared.verdict.node_end import EndedPart
    from clusterddp.runs.view.verdict_lines import Verdict

SECOND = 10**9
BEGAN = 1_800_000_000 * SECOND


def at(seconds: float) -> int:
    return BEGAN + int(seconds * SECOND)


def exception(text: str, *, seconds: float, file: str = "/home/u/work/train.py", line: int = 81) -> dict[str, Any]:
    """What the hook writes for ``Kind: message``."""
    kind, _, message = text.partition(": ")
    place = {"file": file, "line": line, "time_ns": at(seconds)}
    return {"exc_type": kind, "exc_message": message, "message": {"message": text}, **place}


class Told:
    """One node, put together by what happened on it."""

    def __init__(
        self,
        rank: int = 0,
        *,
        workers: int = 1,
        first_rank: int | None = None,
        offset: float = 0.0,
        error: float = 0.001,
        run: str = "r1",
        **record: Any,
    ) -> None:
        self.host = f"gpu{rank:02}"
        self.offset = int(offset * SECOND)
        self.first_rank = rank * workers if first_rank is None else first_rank
        self.fields: dict[str, Any] = {
            "run": run,
            "attempt": 1,
            "host": self.host,
            "node_rank": rank,
            "spool": f"/s/runs/{run}/1/{rank}-{self.host}",
            "state": "running",
            "exit": None,
            "events": [],
            "clock_offset_ns": self.offset,
            "clock_error_ns": int(error * SECOND),
            "record": {"hosts": [], **record},
            "pids": [],
            "errors": {},
            "stderr": {},
        }
        self.start(workers)

    @property
    def evidence(self) -> Evidence:
        return self.node.evidence

    @property
    def part(self) -> EndedPart:
        return self.node.part

    @property
    def node(self) -> NodeReport:
        """As the operator reads it."""
        return read_record(NodeReport, self.fields, "node")

    def event(self, name: str, seconds: float, **fields: Any) -> None:
        event = {"event": name, "time": at(seconds) + self.offset, **fields}
        self.fields["events"].append(json.loads(json.dumps(event)))

    def start(self, workers: int, number: int = 0, seconds: float = 0.0) -> None:
        for local in range(workers):
            self.event("worker_started", seconds, start=number, local_rank=local, rank=self.first_rank + local)

    def died(
        self,
        seconds: float,
        *,
        local: int = 0,
        code: int = 0,
        signal: int | None = None,
        raised: str = "",
        raised_at: float | None = None,
        stderr: str = "",
        start: int = 0,
        **more: Any,
    ) -> Told:
        """A worker ended: by a signal, by a code, or by an exception."""
        key = f"{start}.{local}"
        if raised:
            record = exception(raised, seconds=seconds if raised_at is None else raised_at)
            record["time_ns"] += self.offset
            self.fields["errors"][f"{key}.json"] = record
        status = 128 + signal if signal else code or int(bool(raised))
        self.fields["stderr"][key] = stderr
        ended = {"exit_code": status, "signal": signal, "rank": self.first_rank + local, **more}
        self.event("worker_exited", seconds, start=start, local_rank=local, **ended)
        return self

    def ended(
        self, state: str, seconds: float, *, reason: str = "", agent: int = 1, log: str = "", **more: Any
    ) -> Told:
        """The exit record; a stopped node was told so at ``ordered`` (by default as it ended)."""
        ordered = more.pop("ordered", seconds)
        if state == "stopped":
            self.event("stopping", ordered, reason=reason)
        self.event("agent_exited", seconds, exit_code=agent)
        reason = reason or ("" if state == "succeeded" else f"the agent ended with {agent}")
        self.fields["exit"] = {
            "state": state,
            "exit_code": agent,
            "reason": reason,
            "agent_exit": agent,
            "ended": at(seconds) + self.offset,
            "survivors": [],
            **more,
        }
        self.fields["state"] = state
        self.fields["stderr"]["agent"] = log
        return self

    def failed(self, seconds: float, *, log: str = "", agent: int = 1) -> Told:
        return self.ended("failed", seconds, log=log, agent=agent)

    def stopped(self, seconds: float, reason: str, *, ordered: float | None = None, ours: bool = False) -> Told:
        return self.ended(
            "stopped", seconds, reason=reason, ordered=seconds - 1 if ordered is None else ordered, ours=ours
        )

    def succeeded(self, seconds: float) -> Told:
        return self.ended("succeeded", seconds, agent=os.EX_OK)

    def lost(self, *, rebooted: bool = False) -> Told:
        self.fields.update(state="lost", rebooted=rebooted)
        return self


def verdict(*told: Told, unreachable: Iterable[str] = ()) -> Verdict:
    """The verdict on these nodes of a run that was followed to its end."""
    nodes = tuple(one.node for one in told)
    found = RunView(run="r1", nodes=nodes, silent=tuple(unreachable), watched=True).verdict()
    assert found
    return found
