"""Run the checks before a run: those of the doctor that need only what a run asks the hosts anyway."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from clusterddp.checks.catalog import TABLE
from clusterddp.checks.engine import judge, select
from clusterddp.checks.evidence import Answer, Evidence, HostEvidence
from clusterddp.checks.needs import ASKED, DIALLED, FACTS, HEALTH, NETWORK
from clusterddp.errors import PlanError, one_error
from clusterddp.facts.gpu_assignment import assign_gpus, with_taken_gpus
from clusterddp.hosts.fanout import values
from clusterddp.probe.gather import ask_hosts, survey_network
from clusterddp.project.crash import write_crash
from clusterddp.remote.shared.text.counted import counted
from clusterddp.text.folding import folded_names

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from clusterddp.checks.evidence import NetworkEvidence
    from clusterddp.checks.model import Check, CheckResult
    from clusterddp.facts.host import Facts
    from clusterddp.hosts.client import Host
    from clusterddp.hosts.fanout import Outcome
    from clusterddp.inventory import HostEntry
    from clusterddp.launch.options import RunOptions

ASKED_ANYWAY = frozenset({ASKED, FACTS, NETWORK, DIALLED})  # what a run asks the hosts in any case
ESSENTIAL = ("setup", "python")  # no option skips these checks: without a Python nothing can start
# Checks whose warnings are shown before a run; warnings of others are not.
SHOWN_WARNINGS = frozenset({"busy-gpus", "gpus-equal", "same-machine", "speed-equal"})
_CHECKED_BY_PLAN = frozenset({"clock"})  # left to the plan: only c10d needs clocks that agree
_BUSY_GPUS = "busy-gpus"


def choose_checks(options: RunOptions) -> list[Check]:
    """Return the checks of a run's preflight, in order; raises UsageError if ``skip`` names an unknown check."""
    allowed = {check.name for check in select(skip=options.skip)} - _CHECKED_BY_PLAN
    if options.no_doctor:
        allowed = set()
    quick = {check.name for check in TABLE if check.needs and ASKED_ANYWAY.issuperset(check.needs)} | {_BUSY_GPUS}
    return [check for check in TABLE if check.name in allowed & quick or check.name in ESSENTIAL]


def raise_failures(results: Iterable[CheckResult]) -> None:
    """Raise PlanError or HostsError for results that fail; the remedy says how to go on anyway."""
    errors = [
        PlanError(f"{folded_names(result.hosts)}: {result.message}", remedy=remedy(result))
        for result in results
        if result.verdict == "fail"
    ]
    if errors:
        raise one_error(errors)


def admit(results: Iterable[CheckResult], notify: Callable[[str], None]) -> None:
    """Raise PlanError or HostsError for results that fail; show important warnings."""
    results = list(results)
    raise_failures(results)
    for line in warnings_to_show(results):
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
    network: NetworkEvidence,
) -> dict[str, tuple[str, str]]:
    """Check the network between the hosts (after ``admit_hosts``); return the interface and address of each."""
    if network.error:
        raise PlanError(network.error, remedy=network.remedy)
    admit(results_of(checks, hosts, outcomes, options, network), notify)
    return {name: (route.name, route.address) for name, route in network.where.items()}


def remedy(result: CheckResult) -> str:
    """Return the remedy for a failed check, or how to run in spite of it."""
    required = result.final or result.name in ESSENTIAL
    return result.fix if required else f"{result.fix}; or go on all the same: --skip {result.name}"


def warnings_to_show(results: Iterable[CheckResult]) -> list[str]:
    """Return the warnings to show, a line each."""
    return [
        f"{folded_names(result.hosts)}: {result.message}"
        for result in results
        if result.verdict == "warn" and result.name in SHOWN_WARNINGS
    ]


def evidence(
    outcomes: Iterable[tuple[HostEntry, Outcome[Facts]]],
    *,
    nproc: int | None = None,
    gpus: str | None = None,
    network: NetworkEvidence | None = None,
) -> Evidence:
    """Collect the hosts' answers for the checks.

    ``nproc`` and ``gpus``, the run's options, take precedence over the hosts' variables in the inventory.
    """
    hosts = []
    for entry, outcome in outcomes:
        named = None if gpus and isinstance(entry.gpus, tuple) else entry.gpus
        stated = replace(entry, nproc=entry.nproc if nproc is None else nproc, gpus=named)
        hosts.append(HostEvidence(entry=stated, facts=outcome.value, facts_error=outcome.reason))
    return Evidence(hosts=tuple(hosts), network=network)


def others_on_gpus(
    hosts: Sequence[Host],
    facts: Mapping[str, Facts],
    devices: Mapping[str, Sequence[str] | None],
    options: RunOptions,
    checks: Sequence[Check],
) -> list[CheckResult]:
    """Find others' work on the GPUs that a run would take. Only hosts whose GPUs are in use are asked for details."""
    selected = [check for check in checks if check.name == _BUSY_GPUS and not options.share_gpus]
    taken = {host.name: with_taken_gpus(facts[host.name], devices[host.name]) for host in hosts}
    busy = [host for host in hosts if selected and any(gpu.processes for gpu in taken[host.name].gpus)]
    outcomes = {outcome.name: outcome for outcome in ask_hosts(HEALTH, busy, taken)}
    reports = tuple(
        HostEvidence(
            entry=replace(host.entry, gpus=None),  # its facts have only the use of the GPUs to take
            facts=taken[host.name],
            answers={HEALTH.name: Answer(value=outcomes[host.name].value, error="no answer")},
        )
        for host in busy
    )
    return _judge(Evidence(hosts=reports), selected)


def _judge(evidence: Evidence, checks: Sequence[Check]) -> list[CheckResult]:
    """Run the checks, and save the crash of one that raises: it refuses no host, since its result is unknown."""
    results = judge(evidence, checks)
    for result in results:
        if result.bug:
            write_crash(result.bug, during=f"the check {result.name}")
    return results


def results_of(
    checks: Sequence[Check],
    hosts: Sequence[Host],
    facts: Mapping[str, Outcome[Facts]],
    options: RunOptions,
    network: NetworkEvidence | None = None,
) -> list[CheckResult]:
    """Run the checks of each host alone or, given ``network``, those of the network between them."""
    network_needs = {NETWORK, DIALLED}
    selected = [check for check in checks if bool(network_needs & set(check.needs)) == (network is not None)]
    answers = [(host.entry, facts[host.name]) for host in hosts]
    gathered = evidence(answers, nproc=options.nproc_per_node, gpus=options.gpus, network=network)
    # ``others_on_gpus`` runs the check of busy GPUs, since it needs to know which GPUs the run would take.
    return _judge(gathered, [check for check in selected if check.name != _BUSY_GPUS])


def fitting_hosts(
    hosts: Sequence[Host],
    facts: Mapping[str, Outcome[Facts]],
    options: RunOptions,
    checks: Sequence[Check],
    notify: Callable[[str], None],
) -> tuple[list[Host], NetworkEvidence | None]:
    """For ``nnodes``: return the first hosts that pass, as many as needed, and name the others; raises PlanError.

    With them comes what was found of the network, if it was tried between just these hosts.
    """
    reasons: dict[str, tuple[str, str]] = {}  # host → the message of what failed, and the remedy

    def passing(results: Iterable[CheckResult]) -> list[Host]:
        for result in results:
            for host in result.hosts if result.verdict == "fail" else ():
                reasons.setdefault(host, (result.message, remedy(result)))
        return [host for host in hosts if host.name not in reasons]

    fit = passing(results_of(checks, hosts, facts, options))
    answers = {host.name: facts[host.name].get() for host in fit}
    devices: dict[str, tuple[str, ...] | None] = {}
    for host in fit:
        try:
            devices |= assign_gpus([(host.entry, answers[host.name])], options.gpus, share=options.share_gpus)
        except PlanError as error:
            reasons[host.name] = error.message.removeprefix(f"{host.name}: "), error.remedy
    fit = passing(others_on_gpus([host for host in fit if host.name in devices], answers, devices, options, checks))
    least, most = options.nnodes or (0, len(hosts))
    network, tried = None, fit
    if len(fit) > least:  # there is a choice
        known = {host.name: answers[host.name] for host in fit}
        network = survey_network(fit, known, growing=options.elastic, measured=False)
        fit = fit if network.error else passing(results_of(checks, fit, facts, options, network))
    if len(fit) < least:
        name, (reason, fix) = next(iter(reasons.items()))
        raise PlanError(f"{len(fit)} of {counted(least, 'node')} can take part: {name}: {reason}", remedy=fix)
    for name, (reason, _) in reasons.items():
        notify(f"left out: {name}: {reason}")
    if fit[most:]:
        notify(f"not used: {folded_names([host.name for host in fit[most:]])}")
    return fit[:most], network if fit[:most] == tried else None
