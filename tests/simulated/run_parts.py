"""Runs on simulated hosts: one spool stands for all, written as a supervisor writes it, and read by a real helper.

No process of the run exists. Where hosts report of their parts, each takes the spool's report and puts its own name,
ranks and pids into it.
"""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from clusterddp.remote.logs.time_index import IndexWriter
from clusterddp.remote.shared.run.event_schema import WORKER_STARTED
from clusterddp.remote.shared.run.plan import read_plan
from clusterddp.remote.shared.run.spool_records import ExitRecord, PeersRecord, PeerStatus, Ready, read_ready
from clusterddp.remote.shared.schema.record import to_fields
from clusterddp.remote.shared.verdict.failures import Evidence
from clusterddp.remote.shared.verdict.judge import judge
from clusterddp.remote.shared.verdict.node_end import EndedPart, end_of
from clusterddp.remote.spool.layout import Spool
from clusterddp.remote.supervisor.status_operation import MANY_TELL
from tests.simulated.faults import number_of

if TYPE_CHECKING:
    from collections.abc import Mapping

PIDS = 4000  # from which on processes of the run are numbered


class RunPart:
    """A run as all its hosts have it; ``plan`` is that of the first host."""

    def __init__(self, state: str, plan: Mapping[str, Any]) -> None:
        self.plan = read_plan(plan)
        self.spool = Spool.of(state, self.plan.run, self.plan.attempt, self.plan.node)
        self.ready = Ready()
        self.stopped = False
        for folder in ("logs", "errors"):
            Path(self.spool.path(folder)).mkdir(mode=0o700, parents=True)
        self.spool.write_plan(self.plan)
        self.spool.take_lock()
        self.spool.write_supervisor()
        self.spool.event("supervisor_started", pid=PIDS)

    def spool_of(self, host: str, rank: int) -> str:
        """The path of a host's part."""
        return f"{self.spool.folder.rpartition('/')[0]}/{rank}-{host}"

    def begin(self, ready: Mapping[str, Any]) -> None:
        """All hosts are ready: the workers start."""
        self.ready = read_ready(ready)
        self.spool.write_committed(self.ready)
        self.spool.event("agent_started", pid=PIDS + 1, forked=False)
        for local_rank in range(self.plan.nproc):
            self.spool.event(
                WORKER_STARTED,
                start=0,
                local_rank=local_rank,
                rank=self.plan.node_rank * self.plan.nproc + local_rank,
                group_rank=self.plan.node_rank,
                round=0,
                pid=PIDS + 2 + local_rank,
                world_size=self.plan.world_size,
                local_world_size=self.plan.nproc,
            )
        status = PeerStatus(state="running", attempt=self.plan.attempt, age=0.1)
        known = PeersRecord(
            nodes={peer.host: status for peer in self.plan.peers},
            leader=self.plan.peers[0].host,
            addresses=self.ready.peers,
        )
        self.spool.write_peers(to_fields(known))

    def write_lines(self, lines: int) -> None:
        """Let every worker print so many lines."""
        index = IndexWriter(self.spool.logs)
        for local_rank in range(self.plan.nproc):
            text = "".join(f"step {number}\n" for number in range(lines))
            Path(self.spool.path("logs", f"0.{local_rank}.out")).write_text(text, encoding="utf-8")
        index.poll(time.time_ns())

    def stop(self, reason: str) -> None:
        """End it as a stop does: every node's exit, and the leader's verdict on all nodes."""
        if self.stopped:
            return
        self.stopped = True
        self.spool.write_exit("stopped", 143, reason, agent_exit=1)
        ended = self.spool.exit_record() or ExitRecord("stopped", 143, reason)
        evidence = Evidence(tuple(self.spool.events()), {}, {})
        ends = [
            end_of(EndedPart(peer.host, self.plan.attempt, ended, evidence), member=member, workdir=self.plan.workdir)
            for member, peer in enumerate(self.plan.peers)
        ]
        verdict = judge(ends)._replace(writer=self.plan.peers[0].host, code=self.plan.record.code)
        self.spool.write_verdict(verdict.bounded())
        self.spool.release_lock()


class NodeText:
    """The JSON text of a node's report, into which hosts put their own names and ranks."""

    OWN = ("host", "node_rank", "spool", "events", "peers")

    def __init__(self, node: Mapping[str, Any]) -> None:
        self._own = {name: node[name] for name in self.OWN if name in node}
        shared = {name: value for name, value in node.items() if name not in self._own}
        self._shared = json.dumps(shared)[1:]

    def of(self, host: str, nproc: int, spool: str) -> str:
        """The report of one host."""
        number = number_of(host)
        own = {**self._own, "host": host, "node_rank": number, "spool": spool}
        if "events" in own:
            own["events"] = [_event(event, number, nproc) for event in own["events"]]
        if own.get("peers") and number >= MANY_TELL:
            own["peers"] = {**own["peers"], "nodes": {}}
        return json.dumps(own)[:-1] + ", " + self._shared


def _event(event: Mapping[str, Any], number: int, nproc: int) -> Mapping[str, Any]:
    """An event as another host has it."""
    if event["event"] != WORKER_STARTED:
        return event
    return {**event, "rank": number * nproc + event["local_rank"], "group_rank": number}
