"""Checks of NVIDIA GPUs from what the driver and the kernel log report: memory, errors, clocks, MIG."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from clusterddp.checks.model import Check, Finding, fail, missing_data, odd_ones, skipped, warn
from clusterddp.checks.needs import FACTS, GPU_HEALTH
from clusterddp.facts.gpu_assignment import is_named
from clusterddp.text.folding import folded_names

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from clusterddp.checks.evidence import Evidence, HostEvidence
    from clusterddp.remote.shared.probes.gpu_records import Card, GpuHealth, Xid

    Judge = Callable[[HostEvidence, GpuHealth], Iterable[Finding]]
    from clusterddp.checks.model import Verdict

XID_CATALOGUE = "https://docs.nvidia.com/deploy/xid-errors/"
RESET = "when nothing runs on it, reset it (`sudo nvidia-smi -r -i INDEX`) or reboot; replace it if this comes back"
REBOOT = "reboot the host; if this comes back, have the card, its slot and its power looked at"
WATCH = "run on; reset the GPU when nothing runs on it, and replace it if this comes back often"


class XidMeaning(NamedTuple):
    """What an Xid means, what to do, and the verdict on a host where it occurred recently."""

    text: str
    action: str
    verdict: Verdict


MEANINGS = {
    48: XidMeaning("an uncorrectable memory error", RESET, "fail"),
    61: XidMeaning("the GPU's micro-controller met an error", RESET, "warn"),
    62: XidMeaning("the GPU's micro-controller has halted", RESET, "fail"),
    63: XidMeaning("bad memory is marked to be replaced by spare rows", WATCH, "warn"),
    64: XidMeaning("bad memory could not be replaced by spare rows", RESET, "fail"),
    74: XidMeaning("an NVLink broke", RESET, "fail"),
    79: XidMeaning("the GPU has fallen off the bus", REBOOT, "fail"),
    92: XidMeaning("many correctable memory errors", WATCH, "warn"),
    94: XidMeaning("an uncorrectable memory error that ended one program", WATCH, "warn"),
    95: XidMeaning("an uncorrectable memory error that could not be contained", RESET, "fail"),
    109: XidMeaning("a program could not be switched off the GPU in time", RESET, "warn"),
    110: XidMeaning("a security fault", REBOOT, "fail"),
    119: XidMeaning("the GPU's system processor does not answer", RESET, "fail"),
    120: XidMeaning("the GPU's system processor met an error", RESET, "fail"),
    121: XidMeaning("an error on the link between processor and GPU was corrected", WATCH, "warn"),
    140: XidMeaning("a memory error that was not recovered", RESET, "fail"),
    143: XidMeaning("the GPU could not be started", REBOOT, "fail"),
    154: XidMeaning("the driver asks for another way of recovery", RESET, "warn"),
    **{xid: XidMeaning("an NVLink reported an error", RESET, "warn") for xid in range(144, 151)},
}
# Caused by a faulty or killed program: they say nothing about the next job.
PROGRAM_XIDS = frozenset((8, 11, 13, 31, 32, 43, 45, 68, 69))
OTHER_XID = XidMeaning("an error of the driver", f"look it up in {XID_CATALOGUE}", "warn")


CATEGORY = "GPUs"
_DAY = 86400
_MONTH = 30 * _DAY  # a GPU that has worked since an older error counts as healthy
_SLOWDOWN_CAUSES = {
    "hw_slowdown": "by the board (heat or power)",
    "hw_thermal_slowdown": "by heat",
    "hw_power_brake_slowdown": "by the power supply",
    "sw_thermal_slowdown": "by heat",
}
_REPLACE = "have the GPU replaced; until then leave the host out by --limit, or the GPU by clusterddp_gpus"


def for_gpus(judge: Judge) -> Callable[[Evidence], Iterable[Finding]]:
    """Turn a function that judges one host's GPUs into a check; hosts without GPUs or nvidia-smi data are skipped."""

    def judged(evidence: Evidence) -> Iterable[Finding]:
        for report in evidence.hosts:
            why = _why_skipped(report)
            if why:
                yield skipped(report.name, why)
            elif health := gpu_health(report):
                yield from judge(report, health)

    return judged


def gpu_health(report: HostEvidence) -> GpuHealth | None:
    """Return a host's answer, without the GPUs that ``clusterddp_gpus`` leaves out; None if it has not answered."""
    health, named = GPU_HEALTH.of(report), report.entry.gpus
    if health is None or not isinstance(named, tuple) or any(name.startswith("MIG-") for name in named):
        return health  # the GPU of an instance of MIG is not known
    cards = tuple(card for card in health.cards if is_named(named, card.number, card.uuid))
    left_out = {_normal_pci_address(card.bus) for card in health.cards if card not in cards}
    xids = tuple(xid for xid in health.xids if _normal_pci_address(xid.bus) not in left_out)
    return health._replace(cards=cards, xids=xids)


def _why_skipped(report: HostEvidence) -> str:
    health = GPU_HEALTH.of(report)
    if health is None or not (health.reason or health.error):
        return ""
    return health.reason or "because of nvidia-smi"


def _nvidia_smi(evidence: Evidence) -> Iterable[Finding]:
    for report in evidence.hosts:
        health = GPU_HEALTH.of(report)
        if health and health.reason:
            yield skipped(report.name, health.reason)
        elif health and health.error:
            yield fail(report.name, health.error)


def _health(report: HostEvidence, health: GpuHealth) -> Iterable[Finding]:
    yield from for_each_card(report.name, health.cards, _memory_errors, fail, fix=_REPLACE)
    yield from for_each_card(report.name, health.cards, _reset_reasons, fail)


def _memory_errors(card: Card) -> str:
    return "its memory has errors that cannot be repaired" if card.repair_failed else ""


def _reset_reasons(card: Card) -> str:
    if card.repair_failed:
        return ""
    reasons = [
        f"{card.uncorrectable} uncorrectable memory errors since it was last reset" if card.uncorrectable else "",
        "bad memory that only a reset takes out of use" if card.repair_pending else "",
        f"the driver asks for {card.recovery!r}" if card.recovery else "",
    ]
    return ", ".join(filter(None, reasons))


def _xids(report: HostEvidence, health: GpuHealth) -> Iterable[Finding]:
    if health.xids_error:
        yield missing_data(report.name, health.xids_error)
    buses = {_normal_pci_address(card.bus): card.number for card in health.cards}
    for one in health.xids:
        if one.xid not in PROGRAM_XIDS and one.seconds_ago < _MONTH:
            index = buses.get(_normal_pci_address(one.bus))
            yield _xid_finding(report.name, one, f"PCI {one.bus}" if index is None else f"GPU {index}")


def _xid_finding(host: str, one: Xid, where: str) -> Finding:
    meaning = MEANINGS.get(one.xid, OTHER_XID)
    detail = f" ({one.text[:80]})" if one.xid == 154 or meaning is OTHER_XID else ""
    times = f", {one.times} times, the last" if one.times > 1 else ","
    message = f"{where}: Xid {one.xid}, {meaning.text}{detail}{times} {_time_text(one.seconds_ago)} ago"
    recent = one.seconds_ago < _DAY  # a GPU that failed longer ago has been reset since, or it would not run
    return (fail if meaning.verdict == "fail" and recent else warn)(host, message, fix=meaning.action)


def _normal_pci_address(text: str) -> str:
    """A PCI address in one spelling: nvidia-smi writes ``00000000:07:00.0``, the kernel ``0000:07:00``."""
    domain, _, rest = text.lower().partition(":")
    return f"{domain[-4:]}:{rest.partition('.')[0]}"


def _time_text(seconds: int) -> str:
    for unit, name in ((_DAY, "days"), (3600, "h"), (60, "min")):
        if seconds >= 2 * unit:
            return f"{seconds // unit} {name}"
    return f"{seconds} s"


def _slow_gpus(report: HostEvidence, health: GpuHealth) -> Iterable[Finding]:
    yield from for_each_card(report.name, health.cards, _slowdown_text, warn)
    fix = "`sudo nvidia-smi -pl WATTS`, if it is not meant"
    yield from for_each_card(report.name, health.cards, _power_limit_text, warn, fix=fix)


def _slowdown_text(card: Card) -> str:
    by = list(dict.fromkeys(_SLOWDOWN_CAUSES[name] for name in card.slowdowns if name in _SLOWDOWN_CAUSES))
    hot = f" at {card.celsius} °C" if card.celsius is not None else ""
    # The board's general flag is set along with a specific one: then only the specific reason is shown.
    named = [cause for cause in by if cause != _SLOWDOWN_CAUSES["hw_slowdown"]] or by
    return f"slowed down {' and '.join(named)}{hot}" if named else ""


def _power_limit_text(card: Card) -> str:
    if card.power_watts is None or card.default_watts is None or card.power_watts >= card.default_watts:
        return ""
    return f"limited to {card.power_watts} W, {card.default_watts} W are its default"


def _mig(evidence: Evidence) -> Iterable[Finding]:
    yield from for_gpus(_mig_of_host)(evidence)
    modes = {one.name: _mig_mode(health.cards) for one in evidence.hosts if (health := gpu_health(one))}
    usual, odd = odd_ones({name: mode for name, mode in modes.items() if mode in ("on", "off")})
    for host, mode in odd.items():
        yield warn(host, f"MIG is {mode}, {usual} on most hosts")


def _mig_mode(cards: Iterable[Card]) -> str:
    modes = {card.mig for card in cards}
    return "mixed" if len(modes) > 1 else "on" if True in modes else "off" if modes else ""


def _mig_of_host(report: HostEvidence, health: GpuHealth) -> Iterable[Finding]:
    fix = "`sudo nvidia-smi mig -cgi PROFILE -C`, or switch MIG off: `sudo nvidia-smi -mig 0`"
    yield from for_each_card(report.name, health.cards, _mig_without_instance, fail, fix=fix)
    if _mig_mode(health.cards) == "mixed":
        yield from for_each_card(report.name, health.cards, _mig_on_some, warn)


def _mig_on_some(card: Card) -> str:
    return "MIG is on, off on others" if card.mig and card.instances else ""


def _mig_without_instance(card: Card) -> str:
    return "MIG is on, and it has no instance: torch sees nothing of it" if card.mig and not card.instances else ""


def for_each_card(
    host: str, cards: Iterable[Card], describe: Callable[[Card], str], verdict: Callable[..., Finding], **more: str
) -> Iterable[Finding]:
    """Findings for what ``describe`` says of each GPU of a host; GPUs with the same text share one finding."""
    return by_text(host, {card.number: text for card in cards if (text := describe(card))}, verdict, **more)


def by_text(host: str, texts: Mapping[int, str], verdict: Callable[..., Finding], **more: str) -> Iterable[Finding]:
    """Findings for a host's GPUs, given as text by GPU index; GPUs with the same text share one finding."""
    indices_of: dict[str, list[str]] = {}
    for index, text in texts.items():
        indices_of.setdefault(text, []).append(str(index))
    for text, indices in indices_of.items():
        yield verdict(host, f"GPU {folded_names(indices)}: {text}", **more)


AFTER = ("gpus", "nvidia-smi")
CHECKS = (
    Check(
        name="nvidia-smi",
        category=CATEGORY,
        title="nvidia-smi tells of every GPU",
        judge=_nvidia_smi,
        needs=(FACTS, GPU_HEALTH),
        after=("gpus",),
        symptom="a hang in the first .cuda(), or CUDA error: unknown error",
        fix="run `nvidia-smi -q` there; one that hangs or fails needs the driver reloaded, or a reboot",
    ),
    Check(
        name="gpu-health",
        category=CATEGORY,
        title="the GPUs' memory is sound, and none waits for a reset",
        judge=for_gpus(_health),
        needs=(FACTS, GPU_HEALTH),
        after=AFTER,
        symptom="CUDA error: uncorrectable ECC error encountered, or a loss that becomes NaN",
        fix=RESET,
    ),
    Check(
        name="xids",
        category=CATEGORY,
        title="the kernel log has no error of a GPU",
        judge=for_gpus(_xids),
        needs=(FACTS, GPU_HEALTH),
        after=AFTER,
        symptom="CUDA error: unknown error, GPU is lost, or a collective that never ends",
        fix=RESET,
    ),
    Check(
        name="gpu-speed",
        category=CATEGORY,
        title="no GPU is slowed down by heat or power",
        judge=for_gpus(_slow_gpus),
        needs=(FACTS, GPU_HEALTH),
        after=AFTER,
        symptom="all ranks wait for one that is slow",
        fix="look at fans, airflow and power of that machine",
    ),
    Check(
        name="mig",
        category=CATEGORY,
        title="MIG is used alike, and has instances where it is on",
        judge=_mig,
        needs=(FACTS, GPU_HEALTH),
        after=AFTER,
        symptom="No CUDA GPUs are available, or ranks with a fraction of the others' memory",
        fix="switch it off (`sudo nvidia-smi -mig 0`), or name the instances in clusterddp_gpus",
    ),
)
