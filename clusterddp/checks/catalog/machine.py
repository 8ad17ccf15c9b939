"""Checks of the machines: identity, clocks, memory, limits, and what already runs there."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from clusterddp.checks.model import Check, Finding, Need, fail, for_each, for_facts, missing_data, odd_ones, warn
from clusterddp.checks.needs import FACTS, HEALTH, RUNS
from clusterddp.facts.gpu_assignment import worker_count
from clusterddp.facts.read_facts import read_answer
from clusterddp.remote.shared.probes.torchrun_records import StrayRank, StrayRanks
from clusterddp.remote.shared.text.counted import counted
from clusterddp.text.folding import few

if TYPE_CHECKING:
    from collections.abc import Iterable

    from clusterddp.checks.evidence import Evidence
    from clusterddp.facts.host import Facts
    from clusterddp.inventory import HostEntry
    from clusterddp.remote.shared.probes.health_records import Health

CATEGORY = "Machines"
_GIB, _MIB = 1 << 30, 1 << 20
_MAX_SKEW, _FAILING_SKEW = 5.0, 15.0  # seconds; torchrun's c10d gives a node up after three heartbeats of five seconds
_MIN_SHM, _GOOD_SHM = 128 * _MIB, 512 * _MIB  # a container's own default is 64 MiB
_MEMORY_TOLERANCE = 0.1  # firmware takes a little memory, never the same
_MIN_OPEN_FILES, _MIN_PROCESSES = 1024, 4096
_MIN_MEMLOCK = 1 << 30


def identity(facts: Facts) -> tuple[str, ...]:
    """A key that is equal for two inventory names of one machine.

    The addresses are part of it because boot ids look alike where /proc is hidden.
    """
    return (facts.boot, *sorted(one.address for one in facts.addresses))


def _same_machine(evidence: Evidence) -> Iterable[Finding]:
    first: dict[tuple[str, ...], HostEntry] = {}
    for entry, facts in evidence.facts:
        other = first.setdefault(identity(facts), entry)
        intended = entry.connection == "local" or (isinstance(entry.gpus, tuple) and isinstance(other.gpus, tuple))
        if other is not entry and not intended:
            # A run works (its nodes share the GPUs), but mostly the inventory lists the machine twice by mistake.
            own = ", or give each its own clusterddp_gpus" if facts.devices else ""
            fix = f"remove one of them from the inventory{own}"
            yield Finding(verdict="warn", hosts=(other.name, entry.name), message="they are one machine", fix=fix)


def _hostnames(evidence: Evidence) -> Iterable[Finding]:
    machines: dict[str, dict[str, str]] = {}
    for entry, facts in evidence.facts:
        machines.setdefault(facts.hostname, {}).setdefault(facts.boot, entry.name)
    for hostname, holders in machines.items():
        if len(holders) > 1:
            yield Finding(verdict="warn", hosts=tuple(holders.values()), message=f"all are called {hostname}")


def _clocks(evidence: Evidence) -> Iterable[Finding]:
    offsets = {entry.name: (facts.clock_offset_ns, facts.clock_error_ns) for entry, facts in evidence.facts}
    if len(offsets) < 2:
        return
    # Ours counts too, and of two middle values the one nearer ours: where clocks differ evenly, ours decides.
    offsets_sorted = sorted([0, *(offset for offset, _ in offsets.values())])
    middle = min(offsets_sorted[(len(offsets_sorted) - 1) // 2 : len(offsets_sorted) // 2 + 1], key=abs)
    for host, (offset, error) in offsets.items():
        off = (abs(offset - middle) - error) / 1e9
        if off > _MAX_SKEW:
            direction = "ahead of" if offset > middle else "behind"
            message = f"its clock is {abs(offset - middle) / 1e9:.0f} s {direction} the others'"
            yield (fail if off > _FAILING_SKEW else warn)(host, message)


def _hardware(evidence: Evidence) -> Iterable[Finding]:
    usual, odd = odd_ones({entry.name: str(facts.cores) for entry, facts in evidence.facts})
    for host, cores in odd.items():
        yield warn(host, f"{counted(int(cores), 'core')}, {usual} on most")
    memories = {entry.name: facts.memory_bytes for entry, facts in evidence.facts if facts.memory_bytes}
    middle = sorted(memories.values())[len(memories) // 2] if memories else 0
    for host, memory in memories.items():
        if abs(memory - middle) > middle * _MEMORY_TOLERANCE:
            yield warn(host, f"{memory / _GIB:.0f} GiB of memory, {middle / _GIB:.0f} on most")


def _memory(entry: HostEntry, health: Health) -> Finding | None:
    available = health.available_bytes
    if available is None:
        return missing_data(entry.name, "/proc/meminfo does not tell")
    if available >= _GIB:
        return None
    return warn(entry.name, f"only {available // _MIB} MiB of memory are available")


def _workers(entry: HostEntry, facts: Facts) -> int:
    """The number of workers that a run starts on a host: with a list of GPUs in the inventory, one for each of them."""
    return worker_count(entry, facts, entry.gpus if isinstance(entry.gpus, tuple) else None)


def _cores(entry: HostEntry, facts: Facts) -> Finding | None:
    count = _workers(entry, facts)
    if count <= facts.cores:
        return None
    return warn(entry.name, f"{counted(count, 'worker')} on {counted(facts.cores, 'core')}")


def _cgroup(evidence: Evidence) -> Iterable[Finding]:
    for report in evidence.hosts:
        health = HEALTH.of(report)
        if not report.facts or not health or not health.cgroup:
            yield missing_data(report.name, "the host does not tell its control groups")
            continue
        group, count = health.cgroup, _workers(report.entry, report.facts)
        too_low = []
        if group.cpu_thousandths is not None and group.cpu_thousandths < count * 1000:
            too_low.append(f"{group.cpu_thousandths / 1000:.3g} CPUs")
        if group.memory_left is not None and group.memory_left < count * _GIB:
            too_low.append(f"{group.memory_left // _MIB} MiB more memory")
        if too_low:
            yield warn(report.name, f"its control group allows {' and '.join(too_low)}, for workers: {count}")


def _shm(entry: HostEntry, facts: Facts) -> Finding | None:
    free = facts.shm_bytes_free
    if free is None:
        return fail(entry.name, "there is no /dev/shm")
    if free >= _GOOD_SHM:
        return None
    return (fail if free < _MIN_SHM else warn)(entry.name, f"only {free // _MIB} MiB are free in /dev/shm")


def _limits(entry: HostEntry, health: Health) -> Finding | None:
    soft = {name: pair[0] for name, pair in health.limits.items()}
    low = [
        f"{name} {value}"
        for name, least in (("nofile", _MIN_OPEN_FILES), ("nproc", _MIN_PROCESSES))
        if (value := soft.get(name)) is not None and value < least
    ]
    memlock = soft.get("memlock")
    if health.infiniband and memlock is not None and memlock < _MIN_MEMLOCK:
        symptom = "ibv_reg_mr failed: Cannot allocate memory"
        return fail(entry.name, f"memlock is {memlock // 1024} KiB, and there is InfiniBand", symptom=symptom)
    return warn(entry.name, f"low limits: {', '.join(low)}") if low else None


def _lingering(entry: HostEntry, facts: Facts) -> Finding | None:
    if facts.kill_user_processes:
        return fail(
            entry.name,
            "logind ends all processes of this user at logout (KillUserProcesses)",
            symptom="the run is lost when the last SSH session to the host ends",
        )
    if facts.remove_ipc:
        return warn(entry.name, "logind removes this user's shared memory at logout (RemoveIPC)")
    return None


def _live_runs(evidence: Evidence) -> Iterable[Finding]:
    judged = set(evidence.names)
    for run in evidence.runs or ():
        hosts = tuple(host for host in run.hosts if host in judged)
        if hosts and not run.left:
            name = f" ({run.name})" if run.name and run.name != run.run else ""
            whose = f" of {run.operator}" if run.operator else ""
            yield Finding(verdict="warn", hosts=hosts, message=f"run {run.run}{name}{whose} is live here")


def _leftovers(evidence: Evidence) -> Iterable[Finding]:
    judged = set(evidence.names)
    for run in evidence.runs or ():
        for host, pids in run.left.items():
            if host in judged:
                listed, left = ", ".join(map(str, pids[:8])), counted(len(pids), "process", "processes")
                yield warn(
                    host,
                    f"run {run.run} has left {left} without a supervisor: pid {listed}",
                    fix=f"`clusterddp stop {run.run}`",
                )


def _read_ranks(host: str, data: Any) -> tuple[StrayRank, ...]:
    return read_answer(StrayRanks, host, data).ranks


STRAY_RANKS: Need[tuple[StrayRank, ...]] = Need(
    name="stray-ranks", operation="stray_ranks", read=_read_ranks, timeout=30.0, without_facts=True
)


def _stray_ranks(entry: HostEntry, ranks: tuple[StrayRank, ...]) -> Finding | None:
    listed = few([f"rank {one.rank} of {one.world_size} (pid {one.pid})" for one in ranks], 8)
    return warn(entry.name, f"workers of a job by hand are running: {listed}") if ranks else None


CHECKS = (
    Check(
        name="same-machine",
        category=CATEGORY,
        title="every host is a machine of its own",
        judge=_same_machine,
        needs=(FACTS,),
        symptom="half as many GPUs for each node; torchrun by hand: Duplicate GPU detected, or CUDA out of memory",
    ),
    Check(
        name="hostnames",
        category=CATEGORY,
        title="every machine has a name of its own",
        judge=_hostnames,
        needs=(FACTS,),
        symptom="torchrun by hand hangs silently; logs and metrics of the hosts get mixed up",
        fix="hostnamectl set-hostname, another on each",
    ),
    Check(
        name="clock",
        category=CATEGORY,
        title="the clocks agree",
        judge=_clocks,
        needs=(FACTS,),
        symptom="torchrun's c10d takes live nodes for dead: agents that never end, jobs that shrink to one host",
        fix="start chrony or systemd-timesyncd on it",
        playbook="hosts.yml",
    ),
    Check(
        name="hardware-equal",
        category=CATEGORY,
        title="the same cores and memory everywhere",
        judge=_hardware,
        needs=(FACTS,),
        symptom="all ranks wait for those on the slowest host",
        fix="nothing, if it is meant; else look at cgroups and at memory that is missing",
    ),
    Check(
        name="memory",
        category=CATEGORY,
        title="there is memory to be had",
        judge=for_each(HEALTH, _memory),
        needs=(HEALTH,),
        symptom="a worker killed by SIGKILL, exit code 137: the kernel's out-of-memory killer",
        fix="see who uses it (`ps aux --sort=-rss`)",
    ),
    Check(
        name="cores",
        category=CATEGORY,
        title="no more workers than cores",
        judge=for_facts(_cores),
        needs=(FACTS,),
        after=("python", "torch", "gpus"),
        symptom="slow steps: workers wait for a core",
        fix="lower clusterddp_nproc, or raise the CPU limit of the container",
    ),
    Check(
        name="cgroup",
        category=CATEGORY,
        title="control groups leave each worker a CPU and memory",
        judge=_cgroup,
        needs=(FACTS, HEALTH),
        after=("python", "torch", "gpus"),
        symptom="slow steps on this host alone, or a worker killed by SIGKILL, exit code 137",
        fix="raise the container's or the slice's limits (memory.max, cpu.max), or lower clusterddp_nproc",
    ),
    Check(
        name="shm",
        category=CATEGORY,
        title="shared memory (/dev/shm) is large enough",
        judge=for_facts(_shm),
        needs=(FACTS,),
        symptom="DataLoader worker is killed by signal: Bus error, or unable to allocate shared memory",
        fix="mount it larger (`mount -o remount,size=8g /dev/shm`, --shm-size of a container), or remove stale files",
        playbook="hosts.yml",
    ),
    Check(
        name="limits",
        category=CATEGORY,
        title="limits of files, processes and locked memory",
        judge=for_each(HEALTH, _limits),
        needs=(HEALTH,),
        symptom="Too many open files, or can't start new thread",
        fix="raise it in /etc/security/limits.d and log in anew",
        playbook="hosts.yml",
    ),
    Check(
        name="lingering",
        category=CATEGORY,
        title="what is started outlives the login",
        judge=for_facts(_lingering),
        needs=(FACTS,),
        symptom="could not unlink the shared memory file /torch_…, once SSH has ended",
        fix="loginctl enable-linger",
        playbook="hosts.yml",
    ),
    Check(
        name="live-runs",
        category=CATEGORY,
        title="no run is live",
        judge=_live_runs,
        needs=(RUNS,),
        symptom="two jobs at half the speed each, or CUDA out of memory",
        fix="nothing, if it is meant; `clusterddp runs --all` shows them, `clusterddp stop RUN` ends one",
    ),
    Check(
        name="leftovers",
        category=CATEGORY,
        title="no run has left processes",
        judge=_leftovers,
        needs=(RUNS,),
        symptom="CUDA out of memory, or Address already in use",
    ),
    Check(
        name="stray-ranks",
        category=CATEGORY,
        title="no worker of a job by hand is running",
        judge=for_each(STRAY_RANKS, _stray_ranks),
        needs=(STRAY_RANKS,),
        symptom="two jobs at half the speed each, CUDA out of memory, or Address already in use",
        fix="nothing, if it is meant; what a torchrun has left is ended with `kill`",
    ),
)
