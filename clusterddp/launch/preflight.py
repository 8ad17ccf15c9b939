"""Run the checks before a run: those of the doctor that need only what a run asks the hosts anyway."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from clusterddp.checks.catalog import TABLE
from clusterddp.checks.engine import judge, select
from clusterddp.checks.evidence import Answer, Evidence, Seen
from clusterddp.checks.needs import ASKED, DIALLED, FACTS, HEALTH, NETWORK
from clusterddp.errors import HostsError, PlanError
from clusterddp.facts.gpu_assignment import assign_gpus
from clusterddp.hosts.fanout import values
from clusterddp.probe.gather import ask_hosts, survey_network
from clusterddp.project.crash import write_crash
from clusterddp.remote.shared.text.counted import counted
from clusterddp.text.folding import folded_names

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from clusterddp.checks.evidence import NetworkSeen
    from clusterddp.checks.model import Check, CheckResult
    from clusterddp.facts.host import Facts
    from clusterddp.hosts.client import Host
    from clusterddp.hosts.fanout import Outcome
    from clusterddp.inventory import HostEntry
    from clusterddp.launch.options import RunOptions

GATHERED = frozenset({ASKED, FACTS, NETWORK, DIALLED})
ESSENTIAL = ("setup", "python")  # without what they look for there is nothing to start: no option skips them
NOTED = frozenset({"busy-gpus", "gpus-equal", "same-machine", "speed-equal"})  # their warnings are shown
_ELSEWHERE = frozenset({"clock"})  # the plan refuses what its rendezvous cannot bear, and ours bears any clock
_GPUS = "busy-gpus"


def chosen(options: RunOptions) -> list[Check]:
    """Return the checks of a run's preflight, in order; raises UsageError if ``skip`` names an unknown check."""
    left = {check.name for check in select(skip=options.skip)} - _ELSEWHERE
    if options.no_doctor:
        left = set()
    quick = {check.name for check in TABLE if check.needs and GATHERED.issuperset(check.needs)} | {_GPUS}
    return [check for check in TABLE if check.name in left & quick or check.name in ESSENTIAL]


def refuse(results: Iterable[CheckResult]) -> None:
    """Raise PlanError or HostsError for results that fail; the remedy says how to go on anyway."""
    errors = [
        PlanError(f"{folded_names(result.hosts)}: {result.message}", remedy=remedy(result))
        for result in results
        if result.verdict == "fail"
    ]
    if errors:
        raise errors[0] if len(errors) == 1 else HostsError(errors)


def admit(results: Iterable[CheckResult], notify: Callable[[str], None]) -> None:
    """Raise an error for results that fail, as ``refuse`` does; show important warnings."""
    results = list(results)
    refuse(results)
    for line in noted(results):
        notify(line)


def admit_hosts(
    hosts: Sequence[Host],
    outcomes: Mapping[str, Outcome[Facts]],
    options: RunOptions,
    checks: Sequence[Check],  # the checks of its preflight
    notify: Callable[[str], None],
    *,
    taking: Sequence[Host] | None = None,  # the hosts that would begin; None: all
    busy: bool = True,  # also refuse hosts whose GPUs others are using
) -> tuple[dict[str, Facts], dict[str, tuple[str, ...] | None]]:
    """Check each host alone (first half of the gate of `run`, `up`, `run --join`); return facts, and GPUs to use."""
    facts = {
        host.name: facts for host, facts in zip(hosts, values([outcomes[host.name] for host in hosts]), strict=True)
    }
    admit(results_of(checks, hosts, outcomes, options), notify)
    taking = hosts if taking is None else taking
    devices = assign_gpus([(h.entry, facts[h.name]) for h in taking], options.gpus, share=options.share_gpus)
    if busy:
        admit(others_on_gpus(taking, facts, devices, options, checks), notify)
    return facts, devices


def admit_network(
    hosts: Sequence[Host],
    outcomes: Mapping[str, Outcome[Facts]],
    options: RunOptions,
    checks: Sequence[Check],
    notify: Callable[[str], None],
    network: NetworkSeen,
) -> dict[str, tuple[str, str]]:
    """Check the network between the hosts (second half of the gate); return the interface and address of each."""
    if network.error:
        raise PlanError(network.error, remedy=network.remedy)
    admit(results_of(checks, hosts, outcomes, options, network), notify)
    return {name: (one.name, one.address) for name, one in network.where.items()}


def remedy(result: CheckResult) -> str:
    """Return the remedy for a failed check, or how to run in spite of it."""
    final = result.final or result.name in ESSENTIAL
    return result.fix if final else f"{result.fix}; or go on all the same: --skip {result.name}"


def noted(results: Iterable[CheckResult]) -> list[str]:
    """Return the warnings to show, a line each."""
    return [
        f"{folded_names(result.hosts)}: {result.message}"
        for result in results
        if result.verdict == "warn" and result.name in NOTED
    ]


def evidence(
    outcomes: Iterable[tuple[HostEntry, Outcome[Facts]]],
    *,
    nproc: int | None = None,
    network: NetworkSeen | None = None,
) -> Evidence:
    """Collect the hosts' answers for the checks; a requested number of workers overrides the hosts' own."""
    hosts = []
    for entry, outcome in outcomes:
        stated = replace(entry, nproc=entry.nproc if nproc is None else nproc)
        hosts.append(Seen(entry=stated, facts=outcome.value, facts_error=outcome.reason))
    return Evidence(hosts=tuple(hosts), network=network)


def as_taken(facts: Facts, devices: Sequence[str] | None) -> Facts:
    """Return the facts with only those GPUs in use that a run would take (UUIDs or indices; None: all visible ones)."""
    if devices is None:
        if facts.visible_devices is None or "MIG-" in facts.visible_devices:  # whose GPU is not known
            return facts
        devices = [name.strip() for name in facts.visible_devices.split(",")]
    taken = tuple(devices)
    gpus = tuple(
        gpu
        if str(gpu.index) in taken or any(gpu.uuid.startswith(name) for name in taken if name.startswith("GPU-"))
        else replace(gpu, processes=(), used_mib=None)
        for gpu in facts.gpus
    )
    return replace(facts, gpus=gpus)


def others_on_gpus(
    hosts: Sequence[Host],
    facts: Mapping[str, Facts],
    devices: Mapping[str, Sequence[str] | None],
    options: RunOptions,
    checks: Sequence[Check],
) -> list[CheckResult]:
    """Find others' work on the GPUs that a run would take. Only hosts whose GPUs are in use are asked for details."""
    wanted = [check for check in checks if check.name == _GPUS and not options.share_gpus]
    seen = {host.name: as_taken(facts[host.name], devices[host.name]) for host in hosts}
    used = [host for host in hosts if wanted and any(gpu.processes for gpu in seen[host.name].gpus)]
    outcomes = {outcome.name: outcome for outcome in ask_hosts(HEALTH, used, seen)}
    return judge(
        Evidence(
            hosts=tuple(
                Seen(
                    entry=host.entry,
                    facts=seen[host.name],
                    answers={HEALTH.name: Answer(value=outcomes[host.name].value, error="no answer")},
                )
                for host in used
            )
        ),
        wanted,
        _crashed,
    )


def _crashed(error: Exception, during: str) -> None:
    """Save the crash of a check. A check that raises refuses no host: its result is unknown."""
    write_crash(error, during=during)


def results_of(
    checks: Sequence[Check],
    hosts: Sequence[Host],
    facts: Mapping[str, Outcome[Facts]],
    options: RunOptions,
    network: NetworkSeen | None = None,
) -> list[CheckResult]:
    """Run the checks of each host alone or, given ``network``, those of the network between them."""
    between = {NETWORK, DIALLED}
    wanted = [check for check in checks if bool(between & set(check.needs)) == (network is not None)]
    known = [(host.entry, facts[host.name]) for host in hosts]
    seen = evidence(known, nproc=options.nproc_per_node, network=network)
    return judge(seen, [check for check in wanted if check.name != _GPUS], _crashed)


def fitting(
    hosts: Sequence[Host],
    facts: Mapping[str, Outcome[Facts]],
    options: RunOptions,
    checks: Sequence[Check],
    notify: Callable[[str], None],
) -> list[Host]:
    """For ``nnodes``: return the first hosts that pass, as many as needed, and name the others; raises PlanError."""
    why: dict[str, tuple[str, str]] = {}  # the message, and what helps

    def left(results: Iterable[CheckResult]) -> list[Host]:
        for result in results:
            for host in result.hosts if result.verdict == "fail" else ():
                why.setdefault(host, (result.message, remedy(result)))
        return [host for host in hosts if host.name not in why]

    fit = left(results_of(checks, hosts, facts, options))
    known = {host.name: facts[host.name].get() for host in fit}
    devices: dict[str, tuple[str, ...] | None] = {}
    for host in fit:
        try:
            devices |= assign_gpus([(host.entry, known[host.name])], options.gpus, share=options.share_gpus)
        except PlanError as error:
            why[host.name] = error.message.removeprefix(f"{host.name}: "), error.remedy
    fit = left(others_on_gpus([host for host in fit if host.name in devices], known, devices, options, checks))
    least, most = options.nnodes or (0, len(hosts))
    if len(fit) > least:  # there is a choice
        network = survey_network(fit, {host.name: known[host.name] for host in fit}, measured=False)
        fit = fit if network.error else left(results_of(checks, fit, facts, options, network))
    if len(fit) < least:
        name, (words, helps) = next(iter(why.items()))
        raise PlanError(f"{len(fit)} of {counted(least, 'node')} can take part: {name}: {words}", remedy=helps)
    for name, (words, _) in why.items():
        notify(f"left out: {name}: {words}")
    if fit[most:]:
        notify(f"not used: {folded_names([host.name for host in fit[most:]])}")
    return fit[:most]
