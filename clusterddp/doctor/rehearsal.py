"""Runs one of our small programs on checked hosts in the same way as a user's script, and removes all traces of it.

``run_program`` does that for any program; ``rehearse`` is the doctor's last check. The programs are in remote/builtin,
so that the hosts have them already; they run inside the spool, which is removed afterwards.
"""

from __future__ import annotations

import json
import threading
import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import clusterddp
from clusterddp.checks import needs
from clusterddp.checks.engine import judge
from clusterddp.checks.evidence import RehearsalEvidence
from clusterddp.errors import ClusterddpError, HostError
from clusterddp.facts.gpu_assignment import one_free_gpu_each
from clusterddp.hosts.ask import ask
from clusterddp.hosts.fanout import each
from clusterddp.hosts.start_limit import MAX_SLOWNESS, slowness_of
from clusterddp.launch.make_plan import make_plan, run_settings
from clusterddp.launch.make_record import operator
from clusterddp.launch.options import RunOptions
from clusterddp.launch.prepare import backend_for, new_run_id, node_of
from clusterddp.launch.ssh import over_ssh
from clusterddp.logs.merge import FrameArrived
from clusterddp.logs.render import LineReader
from clusterddp.logs.selection import Selection
from clusterddp.remote.shared.cleanup.cleanup_records import ForgetAnswer, ForgetRequest
from clusterddp.remote.shared.run.run_record import RunRecord
from clusterddp.remote.shared.run.run_state import RunState
from clusterddp.remote.shared.wire.frames import parse_json
from clusterddp.runs.follow import Follower
from clusterddp.runs.run import Run
from clusterddp.text.folding import folded_names

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from clusterddp.checks.evidence import Evidence
    from clusterddp.checks.model import Check, Need
    from clusterddp.facts.host import Facts, Interface
    from clusterddp.hosts.client import Host
    from clusterddp.hosts.fanout import Outcome
    from clusterddp.launch.make_plan import LaunchPlan
    from clusterddp.logs.merge import Event
    from clusterddp.runs.run_on_hosts import Site
    from clusterddp.runs.view.verdict_lines import Verdict

START_TIMEOUT = 20.0  # seconds until every host must have reported: torchrun's own import of torch, and its rendezvous
RUN_TIMEOUT = 20.0  # seconds of a rehearsal from then on
STEP_TIMEOUT = 10.0  # seconds that one of its steps may take; then torch reports what it waited for
# A small operation takes a host USUAL_OPERATION seconds; where the slowest of all takes longer, for they are busy, all
# these limits are so many times as long, MAX_SLOWNESS times at most.
USUAL_OPERATION = 0.1
# Of the time until every host has reported, most is torchrun's import of torch, on all hosts at once. Workers import it
# once more, so that where the hosts share a machine or a disk, a program may take at least so many times as long.
START_TIMES = 5
OUTPUT_TIMEOUT = 15.0  # seconds to wait for the hosts' last output after a stop
SUPERVISOR_MARGIN = 30.0  # seconds beyond the limit after which the supervisors end a run whose operator is gone
MAX_LINE, MAX_LINES = 1 << 16, 4096  # letters of a line, and lines of each host, that are read
REHEARSAL = "rehearse.py"


@dataclass(frozen=True, kw_only=True, slots=True)
class RehearsalPart:
    """One host's part: its interface to the others, its number of workers, and their GPUs (None: all it sees)."""

    host: Host
    facts: Facts
    interface: Interface
    nproc: int = 1
    devices: tuple[str, ...] | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class WorkerLine:
    """One line of JSON that a worker wrote."""

    rank: int
    host: str
    value: Mapping[str, Any]


@dataclass(frozen=True, kw_only=True, slots=True)
class ProgramResult:
    """How one of our programs ended."""

    lines: tuple[WorkerLine, ...] = ()  # every line of JSON that its workers wrote, in order of arrival
    verdict: Verdict | None = None  # how the run ended; None if hosts did not report it in time, or were lost
    lost: ClusterddpError | None = None  # why the end is not known, if there is a reason
    late: bool = False  # whether it was stopped at its limit
    seconds: float = 0.0  # from the start to the end
    left: Mapping[str, str]  # hosts on which something of it may remain, and what


def run_program(
    cluster: Site,
    parts: Sequence[RehearsalPart],
    program: str,
    options: Mapping[str, Any],
    *,
    limit: float,
    start: float = START_TIMEOUT,
) -> ProgramResult:
    """Run a program of remote/builtin on hosts in the same way as a user's run, and remove all of it from them.

    ``parts`` are in the order of ranks; ``options`` is the program's one argument, as JSON. It is stopped ``limit``
    seconds after every host has reported something, or START_TIMES times what that took, if that is longer; ``start``
    seconds are allowed for it. Raises ``HostError`` or ``PlanError`` if the run could not be started; then nothing
    remains on hosts that answer.
    """
    began = time.monotonic()
    plan = _plan_run(parts, program, options, start + max(limit, START_TIMES * start))
    hosts = [part.host for part in parts]
    run = Run(cluster, plan.run, plan.attempt, dict.fromkeys([host.name for host in hosts], ""), plan.record)
    try:
        spools = over_ssh.launch(hosts, plan, {}).spools
        follower = _BackgroundFollower(Run(cluster, plan.run, plan.attempt, spools, plan.record))
        begun = follower.begun.wait(max(0.0, began + start - time.monotonic()))
        late = not (begun and follower.ended.wait(max(limit, START_TIMES * (time.monotonic() - began))))
        if late:
            run.stop(grace=0.0, reason="its limit")
            follower.ended.wait(OUTPUT_TIMEOUT)
    except ClusterddpError:
        _forget(hosts, plan.run)
        raise
    except BaseException:  # Ctrl-C
        cluster.notify(f"stopping {program.removesuffix('.py')} (run {plan.run})")
        for proof in run.stop(grace=0.0, reason="Ctrl-C"):
            cluster.notify(f"{plan.run}: {proof.host}: {proof.summary}")
        _forget(hosts, plan.run)
        raise
    seconds = time.monotonic() - began
    left = _forget(hosts, plan.run)
    return replace(follower.result(), late=late, seconds=seconds, left=left)


class _BackgroundFollower:
    """Follows a run in a thread of its own, so that the caller need not wait for hosts that may never answer."""

    def __init__(self, run: Run) -> None:
        self.begun, self.ended = threading.Event(), threading.Event()
        self._silent = set(run.spools)
        self._lines: list[WorkerLine] = []
        self._kept: dict[str, int] = {}  # lines of each host
        self._verdict: Verdict | None = None
        self._lost: ClusterddpError | None = None
        self._reader = LineReader()
        self._follower = Follower(run, Selection(stream="out", agent=False, follow=True))
        threading.Thread(target=self._follow, name=f"follow {run.id}", daemon=True).start()

    def result(self) -> ProgramResult:
        """The lines so far, and the verdict if there is one."""
        return ProgramResult(lines=tuple(self._lines), verdict=self._verdict, lost=self._lost, left={})

    def _follow(self) -> None:
        try:
            self._verdict = self._follower.follow(self._take_lines)
        except ClusterddpError as error:  # no host reports how it ended
            self._lost = error
        finally:
            self.begun.set()
            self.ended.set()

    def _take_lines(self, events: list[Event]) -> None:
        for event in events:
            for line in self._reader.feed(event.host, event.frame) if isinstance(event, FrameArrived) else ():
                kept = self._kept[line.host] = self._kept.get(line.host, 0) + 1
                value = _parse_object(line.text) if len(line.text) <= MAX_LINE and kept <= MAX_LINES else None
                if value is not None and line.rank is not None:
                    self._lines.append(WorkerLine(rank=line.rank, host=line.host, value=value))
                    self._silent.discard(line.host)
        if not self._silent:
            self.begun.set()


def _parse_object(text: str) -> Mapping[str, Any] | None:
    """A line as a JSON object; None for any other line, since libraries print what they like."""
    try:
        value = parse_json(text.encode(errors="replace"))
    except ValueError:
        return None
    return value if isinstance(value, dict) else None


def _plan_run(parts: Sequence[RehearsalPart], program: str, options: Mapping[str, Any], limit: float) -> LaunchPlan:
    run = new_run_id()
    nodes = []
    for part in parts:
        where = (part.interface.name, part.interface.address)
        nodes.append(node_of(part.host, part.facts, where, part.nproc, part.devices, "", "", run))
    hosts = [part.host for part in parts]
    facts = {part.host.name: part.facts for part in parts}
    options_of_run = RunOptions(script=program, args=(json.dumps(options),), time_limit=limit + SUPERVISOR_MARGIN)
    settings = run_settings(options_of_run, backend_for("auto", hosts, facts))._replace(program=program)
    record = RunRecord(
        run=run,
        name=program.removesuffix(".py"),
        script=program,
        operator=operator(),
        # no project: it is not a run of the user's, so a command without a run's name must never choose it
        hosts=tuple(host.name for host in hosts),
        versions={"clusterddp": clusterddp.__version__},
        started=time.time_ns(),
    )
    return make_plan(run=run, nodes=nodes, options=options_of_run, settings=settings, record=record)


def _forget(hosts: Sequence[Host], run: str) -> dict[str, str]:
    """Remove the run's spools; the result is what remains, by host."""

    def forget(host: Host) -> ForgetAnswer:
        return ask(host, "forget", ForgetRequest(run=run, hosts=(host.name,)), ForgetAnswer, timeout=60)

    outcomes = each(hosts, forget)
    left = {outcome.name: str(outcome.error) for outcome in outcomes if outcome.error}
    return left | {
        outcome.name: f"processes of run {run} are left" for outcome in outcomes if outcome.value and outcome.value.kept
    }


def parts(
    evidence: Evidence, outcomes: Sequence[Outcome[Host]], chosen: Sequence[Check], need: Need[Any] = needs.REHEARSAL
) -> list[RehearsalPart]:
    """The hosts that can take part: those for which none of the checks found a reason why they cannot."""
    earlier = [check for check in chosen if need not in check.needs]
    causes = {name for check in chosen if need in check.needs for name in check.after}
    bad = {
        host
        for result in judge(evidence, earlier)
        for host in result.hosts
        if result.name in causes and result.verdict == "fail"
    }
    where = evidence.where
    return [
        RehearsalPart(host=outcome.value, facts=report.facts, interface=where[report.name])
        for report, outcome in zip(evidence.hosts, outcomes, strict=True)
        if outcome.value and report.facts and report.name in where and report.name not in bad
    ]


def rehearse(cluster: Site, parts: Sequence[RehearsalPart]) -> RehearsalEvidence:
    """Start a process group of one worker per host, with an all-reduce and a barrier; how far each host came."""
    try:
        backend, why, devices = _backend(parts)
    except ClusterddpError as error:  # a GPU of clusterddp_gpus that the host does not have
        return _with_failure(RehearsalEvidence(), error)
    slowness = measure_slowness([part.host for part in parts])
    options = {"backend": backend, "timeout": STEP_TIMEOUT * slowness}
    limits = {"limit": RUN_TIMEOUT * slowness, "start": START_TIMEOUT * slowness}
    parts = [replace(part, devices=devices.get(part.host.name)) for part in parts]
    try:
        result = run_program(cluster, parts, REHEARSAL, options, **limits)
    except ClusterddpError as error:
        return _with_failure(RehearsalEvidence(backend=backend, why=why), error)
    last = {line.host: line.value for line in result.lines}
    verdict = result.verdict
    seen = RehearsalEvidence(
        reached={part.host.name: str(last.get(part.host.name, {}).get("stage", "")) for part in parts},
        backend=backend,
        why=why,
        seconds=result.seconds,
        left=result.left,
    )
    if verdict and verdict.state == RunState.FAILED:
        return replace(seen, blamed=verdict.culprits, failure=verdict.line, remedy=verdict.remedy)
    return _with_failure(seen, result.lost) if result.lost and not result.late else seen


def measure_slowness(hosts: Sequence[Host]) -> float:
    """How many times as long as usual the slowest host takes for a small operation, all of them at once; 1 at least."""

    def measure(host: Host) -> float:
        began = time.monotonic()
        host.call("clock", timeout=MAX_SLOWNESS)
        return time.monotonic() - began

    # A host that does not answer in that time is as slow as can be, or is lost, which the rehearsal itself shows.
    took = [MAX_SLOWNESS if outcome.value is None else outcome.value for outcome in each(hosts, measure)]
    return slowness_of(max(took, default=0.0), USUAL_OPERATION)


def _with_failure(evidence: RehearsalEvidence, error: ClusterddpError) -> RehearsalEvidence:
    """Add an error that ended the rehearsal; it blames its host, if it names one."""
    blamed = (error.host,) if isinstance(error, HostError) else ()
    return replace(evidence, blamed=blamed, failure=error.message, remedy=error.remedy)


def _backend(parts: Sequence[RehearsalPart]) -> tuple[str, str, dict[str, tuple[str, ...]]]:
    """NCCL with one free GPU per host; else gloo without GPUs, and the reason."""
    no_gpus: dict[str, tuple[str, ...]] = {part.host.name: () for part in parts}
    if not any(part.facts.devices for part in parts):
        return "gloo", "", {}
    if not all(part.facts.torch and part.facts.torch.nccl_available for part in parts):
        return "gloo", "not every torch has NCCL", no_gpus
    without = [part.host.name for part in parts if not part.facts.devices]
    if without:
        return "gloo", f"{folded_names(without)} {'have' if without[1:] else 'has'} no GPU", no_gpus
    devices = one_free_gpu_each([(part.host.entry, part.facts) for part in parts])
    busy = [name for name, chosen in devices.items() if not chosen]
    return ("gloo", f"no GPU of {folded_names(busy)} is free", no_gpus) if busy else ("nccl", "", devices)
