"""Ask all hosts of a run at once for their parts of its bundle: records, outputs, facts, GPUs, traces, stacks."""

from __future__ import annotations

import base64
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING
from urllib.parse import quote

from clusterddp.checks.needs import GPU_HEALTH
from clusterddp.doctor.bundle.contents import EVERYTHING, HOSTS
from clusterddp.errors import HelperError, UnreachableError
from clusterddp.hosts.ask import ask, reading_answer
from clusterddp.hosts.fanout import each
from clusterddp.probe.dial_hosts import facts_of_host
from clusterddp.probe.gather import ask_hosts
from clusterddp.remote.shared.bundle.archive import unpack
from clusterddp.remote.shared.bundle.bundle_records import (
    INDEX,
    MAX_HIDDEN,
    MAX_HIDDEN_FORMS,
    MAX_HIDDEN_LETTERS,
    BundleAnswer,
    BundleIndex,
    BundleRequest,
)
from clusterddp.remote.shared.bundle.stacks_text import stacks_text
from clusterddp.remote.shared.schema.record import parse_record, read_record, to_fields
from clusterddp.remote.shared.text.redaction import Redaction
from clusterddp.remote.shared.text.secret_names import hide_named
from clusterddp.runs.ask_workers import ask_stacks
from clusterddp.runs.why import ENDED, FAILED, explain

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from clusterddp.doctor.bundle.contents import Contents
    from clusterddp.facts.host import Facts
    from clusterddp.hosts.client import Host
    from clusterddp.hosts.fanout import Outcome
    from clusterddp.remote.shared.bundle.archive import Member
    from clusterddp.remote.shared.probes.gpu_records import GpuHealth
    from clusterddp.remote.shared.processes.worker_stacks import WorkerStack
    from clusterddp.runs.run import Run
    from clusterddp.runs.view.run_view import RunView
    from clusterddp.runs.why import Look, Why

# Bytes of output: of all hosts; of one host, at most, at least.
ROOM, MOST_ROOM, LEAST_ROOM = 12 << 20, 3 << 19, 64 << 10
MAX_BESIDE = 16 << 20  # bytes of all that a host sends beside outputs
_BY_NAME = ("environment", "settings", "folder_variables")  # of the facts: variables; packages have names, too
MAX_DESCRIPTION = 300  # letters of each text that a host's index says of a member, or of what it lacks
MAX_LACKS = 100  # things that a host says it lacks
LONGEST_HOST = 80  # letters of a host's name as a folder


@dataclass(frozen=True, kw_only=True, slots=True)
class Part:
    """One host's part of the run; fanout's ``each`` needs the name."""

    name: str
    spools: tuple[str, ...]  # of its attempts, the newest first


@dataclass(frozen=True, kw_only=True, slots=True)
class HostArchive:
    """What a host sent of its spools."""

    members: tuple[Member, ...]
    index: BundleIndex
    hidden: tuple[str, ...]  # secret values to strike out of everything else


@dataclass(frozen=True, kw_only=True, slots=True)
class MachineState:
    """A host's facts and GPUs; ``error``: why its GPUs are not known."""

    facts: Facts
    gpus: GpuHealth | None
    error: str


@dataclass(frozen=True, kw_only=True, slots=True)
class HostAnswers:
    """What all hosts said."""

    why: Why
    look: Look | None  # at the live workers
    stacks: Sequence[Outcome[list[WorkerStack]]]
    archives: Sequence[Outcome[HostArchive]]
    machines: Sequence[Outcome[MachineState]]


def parts_of(run: Run) -> list[Part]:
    """Return the run's hosts that have files of it."""
    spools: dict[str, list[str]] = {}
    for attempt in sorted({run.attempt, *run.attempts}, reverse=True):
        for host, spool in (run.attempts.get(attempt) or run.spools).items():
            spools.setdefault(host, []).extend([spool] if spool else [])
    return [Part(name=host, spools=tuple(folders)) for host, folders in spools.items() if folders]


def ask_run(run: Run, view: RunView, seconds: float) -> HostAnswers:
    """Ask all hosts for everything at once, for so many seconds; only stacks come after ``why``.

    Taking them may end a C call that a worker blocks in, and so the hang that ``why`` looks at.
    """
    deadline = time.monotonic() + seconds
    parts = parts_of(run)
    looks: list[Look] = []
    room = max(LEAST_ROOM, min(MOST_ROOM, ROOM // max(1, len(parts))))
    pool = ThreadPoolExecutor(2)
    try:
        machines = pool.submit(each, parts, lambda part: ask_machine(_open(run, part, view), part, deadline))
        archives = pool.submit(each, parts, lambda part: ask_archive(_open(run, part, view), part, room, deadline))
        why = explain(run, view, looks.append)
        has_workers = view.live and why.state not in {ENDED, FAILED}
        return HostAnswers(
            why=why,
            look=looks[-1] if has_workers and looks else None,
            stacks=ask_stacks(run, timeout=_left(deadline)) if has_workers else (),
            archives=archives.result(),
            machines=machines.result(),
        )
    finally:  # after Ctrl-C do not wait for hosts that may never answer
        pool.shutdown(wait=False, cancel_futures=True)


def add_answers(contents: Contents, run: Run, view: RunView, answers: HostAnswers) -> set[str]:
    """Add what the hosts said beside ``why``; return secret values that they name."""
    names = folder_names(run.hosts)
    lack_hosts(contents, run, view)
    if answers.look:
        add_traces(contents, answers.look, names)
    add_stacks(contents, answers.stacks)
    add_machines(contents, answers.machines, names)
    return add_archives(contents, answers.archives, names)


def lack_hosts(contents: Contents, run: Run, view: RunView) -> None:
    """Note which hosts of the run have no part in the bundle."""
    asked = {part.name for part in parts_of(run)}
    for name in sorted(run.hosts - asked):
        why = "it does not answer" if name in view.silent else "it has no files of this run"
        contents.lack(EVERYTHING, why, name)


def folder_names(hosts: Iterable[str]) -> dict[str, str]:
    """Return a folder's name for each host, of plain letters alone, no two alike."""
    names: dict[str, str] = {}
    for number, host in enumerate(sorted(hosts)):
        name = quote(host, safe="").lstrip(".")[:LONGEST_HOST]
        names[host] = name if name and name not in names.values() else f"{name}~{number}"
    return names


def _open(run: Run, part: Part, view: RunView) -> Host:
    """Return a connection to the host of a live run itself; of one that is over, to whoever has its files."""
    if view.live:
        return run.cluster.launcher_of(run.record).host(run.cluster, run.id, part.name)
    return run.reader(part.name)


def _left(deadline: float) -> float:
    return max(1.0, deadline - time.monotonic())


def ask_archive(host: Host, part: Part, room: int, deadline: float) -> HostArchive:
    """Return a host's records and ends of outputs, of at most ``room`` bytes; raises HostError."""
    request = BundleRequest(part.spools, room, host.name == part.name)
    answer = ask(host, "bundle", request, BundleAnswer, timeout=_left(deadline))
    _refuse_many_secrets(host.name, answer.hidden)
    with reading_answer(host.name):
        members = unpack(base64.b64decode(answer.archive, validate=True), room + MAX_BESIDE)
        index = next((member.body for member in members if member.name == INDEX), b"")
        described = parse_record(index, lambda data: read_record(BundleIndex, data, "index"))
    others = tuple(member for member in members if member.name != INDEX)
    return HostArchive(members=others, index=described, hidden=answer.hidden)


def _refuse_many_secrets(host: str, values: Sequence[str]) -> None:
    """Raise HelperError for secret values that would take too long to look for in all texts."""
    letters = sum(map(len, values))
    too_many = len(values) > MAX_HIDDEN or letters > MAX_HIDDEN_LETTERS
    if too_many or len(Redaction(values).forms) > MAX_HIDDEN_FORMS:  # of a value each line is looked for
        raise HelperError(host, f"it names {len(values)} secret values of {letters} letters, too many to look for all")


def add_archives(contents: Contents, archives: Iterable[Outcome[HostArchive]], names: dict[str, str]) -> set[str]:
    """Add the hosts' records and outputs."""
    hidden: set[str] = set()
    for outcome in archives:
        if outcome.value is None:
            contents.lack("records, outputs, kernel messages", outcome.reason, outcome.name)
            continue
        hidden.update(outcome.value.hidden)
        described = {part.name: part for part in outcome.value.index.parts}
        for member in outcome.value.members:
            part = described.get(member.name)
            name = f"{HOSTS}{names[outcome.name]}/{member.name}"
            text = member.body.decode(errors="replace")
            what, note = (part.what, part.note) if part else ("", "")
            contents.add(name, what[:MAX_DESCRIPTION], text, note[:MAX_DESCRIPTION])
        for what, why in outcome.value.index.missing[:MAX_LACKS]:
            contents.lack(what[:MAX_DESCRIPTION], why[:MAX_DESCRIPTION], outcome.name)
    return hidden


def ask_machine(host: Host, part: Part, deadline: float) -> MachineState:
    """Return a host's facts, and the state of its GPUs with their Xids, as the doctor asks for them."""
    if host.name != part.name:
        raise UnreachableError(part.name, f"the run is over, and {host.name} has its files but is another machine")
    facts = facts_of_host(host, fresh=False, packages=True, timeout=_left(deadline))
    gpus = ask_hosts(replace(GPU_HEALTH, timeout=_left(deadline)), [host], {host.name: facts})[0]
    return MachineState(facts=facts, gpus=gpus.value, error=gpus.reason)


def add_machines(contents: Contents, machines: Iterable[Outcome[MachineState]], names: dict[str, str]) -> None:
    """Add the hosts' facts and GPUs."""
    for outcome in machines:
        folder, state = f"{HOSTS}{names[outcome.name]}", outcome.value
        if state is None:
            contents.lack("facts, GPUs", outcome.reason, outcome.name)
            continue
        facts = asdict(state.facts)
        facts.update((name, hide_named(facts[name])) for name in _BY_NAME)
        contents.add(f"{folder}/facts.json", "the machine, its Python and packages", facts)
        if state.gpus is None or state.gpus.reason:
            contents.lack("gpu-health.json", state.gpus.reason if state.gpus else state.error, outcome.name)
        else:
            health = to_fields(state.gpus)
            contents.add(f"{folder}/gpu-health.json", "the doctor's look at its GPUs, with Xids", health)


def add_traces(contents: Contents, seen: Look, names: dict[str, str]) -> None:
    """Add what live workers do."""
    for host, found in seen.traces.items():
        value = [to_fields(trace) for trace in found]
        contents.add(f"{HOSTS}{names[host]}/traces.json", "its ranks' last collective operations", value)
    for reason in seen.reasons:
        contents.lack("traces.json", reason)


def add_stacks(contents: Contents, outcomes: Sequence[Outcome[list[WorkerStack]]]) -> None:
    """Add the stacks of live workers."""
    stacks = sorted((one for outcome in outcomes for one in outcome.value or ()), key=lambda stack: stack.rank)
    if stacks:
        contents.add("stacks.txt", "the Python stacks of all ranks, equal ones once", stacks_text(stacks))
    for outcome in outcomes:
        if outcome.error:
            contents.lack("stacks", outcome.reason, outcome.name)
