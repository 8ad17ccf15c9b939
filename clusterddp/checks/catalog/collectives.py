"""Checks of the benchmark run over all hosts (`doctor --bench`): all-reduces, matrix products, ranks that were late."""

from __future__ import annotations

from typing import TYPE_CHECKING

from clusterddp.checks.catalog import rehearsal
from clusterddp.checks.catalog.performance import CATEGORY, rate
from clusterddp.checks.model import Check, Finding, fail, missing_data, skipped, warn
from clusterddp.checks.needs import DIALLED, FACTS, WORKERS
from clusterddp.facts.bench_results import FAR_LOWER_SHARE, expected_busbw, late_ranks, odd_sums, slow_gpus
from clusterddp.facts.speeds import find_slow_hosts, median
from clusterddp.remote.shared.text.counted import counted
from clusterddp.text.folding import folded_names

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from clusterddp.checks.evidence import Evidence
    from clusterddp.checks.model import Verdict
    from clusterddp.facts.bench import Bench, Together
    from clusterddp.facts.bench_results import Gemm, Lateness

_MIN_SHARE_OF_PAIRS = 0.02  # of what pairs of hosts reach; gloo on two busy cores comes down to 0.1
_CAUSES = ("idle", *rehearsal.CAUSES, "rehearsal")


def slow_all_reduce(bench: Bench) -> str:
    """Describe how far the largest all-reduce falls short; empty if it does not, or if no expectation is known."""
    together = bench.together
    if together is None or not together.measured.reduces or together.measured.reduces[-1].world < 2:
        return ""
    last = together.measured.reduces[-1]
    figure = expected_busbw(together.measured.gemms)
    if figure and last.size >= 1 << 30 and last.busbw < FAR_LOWER_SHARE * figure[0]:
        return f"{last.busbw:.0f} GB/s on the bus, such machines reach {figure[0]:.0f} ({figure[1]})"
    pairs = find_slow_hosts(bench.speeds)
    if pairs.hosts or pairs.ways:
        return ""  # the check `bandwidth` reports it
    reached = last.busbw * 8000
    if last.size >= 1 << 20 and reached < _MIN_SHARE_OF_PAIRS * pairs.usual:
        return f"{rate(reached)} on the bus, and pairs of hosts reach {rate(pairs.usual)}"
    return ""


def _all_reduce(evidence: Evidence) -> Iterable[Finding]:
    bench = evidence.bench
    if bench is None or bench.together is None:
        return
    together = bench.together
    hosts = evidence.names
    yield from (missing_data(host, "it took no part") for host in hosts if host not in together.hosts)
    if together.error:
        yield from _blame(together, hosts, "fail", together.error)
        return
    for reduce in together.measured.reduces:
        if reduce.wrong:
            are = "is" if reduce.wrong == 1 else "are"
            message = f"{counted(reduce.wrong, 'element')} of sums of {counted(reduce.size, 'byte')} {are} wrong"
            yield Finding(verdict="fail", hosts=together.hosts, message=message, fix=_FIX_WRONG_SUMS)
            return
    if slow := slow_all_reduce(bench):
        yield from _blame(together, hosts, "warn", slow)


def _blame(together: Together, hosts: Sequence[str], verdict: Verdict, text: str) -> Iterable[Finding]:
    """Blame the hosts that bisection found, else those that failed first, else all that took part."""
    suspects = [host for host in together.at_fault or together.blamed if host in hosts]
    message = f"{text}; groups with it are as bad, others are not" if together.at_fault and suspects else text
    blamed = tuple(suspects) or tuple(host for host in hosts if host in together.hosts)
    yield Finding(verdict=verdict, hosts=blamed, message=message, fix=together.remedy)
    others = tuple(host for host in hosts if host in together.hosts and host not in blamed)
    if others and verdict == "fail":
        yield Finding(verdict="skipped", hosts=others, message=f"because of {folded_names(blamed)}")


def _gemm(evidence: Evidence) -> Iterable[Finding]:
    together = evidence.bench.together if evidence.bench else None
    if together is None:
        return
    gemms = together.measured.gemms
    yield from _without_measurement(evidence, together, gemms)
    for gemm in gemms:
        if gemm.wrong:
            message = f"{_rank_label(gemm)}: {gemm.wrong} elements of a product differ when it is done again"
            yield fail(gemm.host, message, symptom="a loss that becomes NaN, or never falls, on some runs only")
    for gemm in odd_sums(gemms):
        message = f"{_rank_label(gemm)}: its product is another than that of the other {gemm.device}"
        yield fail(gemm.host, message, symptom="a loss that becomes NaN, or never falls, on some runs only")
    for gemm, usual in slow_gpus(gemms):
        yield warn(gemm.host, f"{_rank_label(gemm)}: {gemm.tflops:.0f} TFLOP/s, other {gemm.device} reach {usual:.0f}")


def _stragglers(evidence: Evidence) -> Iterable[Finding]:
    """Warn of ranks that need much longer than the others for equal work in the benchmark run over all hosts."""
    together = evidence.bench.together if evidence.bench else None
    if together is None:
        return
    lateness = together.measured.lateness
    yield from _without_measurement(evidence, together, lateness)
    for late, ratio in late_ranks(lateness):
        waited = median(median(other.waited) for other in lateness if other is not late)
        share = waited / max(1.0, waited + median(late.worked))
        message = f"{_rank_label(late)} needs {ratio:.1f} times as long for equal work, and the others wait"
        yield warn(late.host, f"{message} {share:.0%} of the time")


def _without_measurement(
    evidence: Evidence, together: Together, results: Sequence[Gemm] | Sequence[Lateness]
) -> Iterable[Finding]:
    """Hosts without a measurement: skipped if the check `allreduce` reports why the run failed, else unknown."""
    measured = {result.host for result in results}
    for host in evidence.names:
        if host in measured:
            continue
        failed = together.error if host in together.hosts else ""
        if failed and together.reduced:
            yield skipped(host, "because of allreduce")
        else:
            yield missing_data(host, failed or "it told nothing")


def _rank_label(result: Gemm | Lateness) -> str:
    return f"rank {result.rank}"


_FIX_WRONG_SUMS = "run with fewer hosts or GPUs until the sums are right, and drain who is left out"

CHECKS = (
    Check(
        name="allreduce",
        category=CATEGORY,
        title="all-reduces over all hosts are right, and not far slower than they should be",
        judge=_all_reduce,
        needs=(FACTS, DIALLED, WORKERS),
        after=_CAUSES,
        symptom="a hang or a timeout in the first collective, or steps that take many times as long",
        fix="look at what NCCL says: `clusterddp run --debug-comm`",
    ),
    Check(
        name="gemm",
        category=CATEGORY,
        title="matrix products are repeatable, and equal GPUs equally fast",
        judge=_gemm,
        needs=(FACTS, DIALLED, WORKERS),
        after=_CAUSES,
        symptom="every step takes as long as on the slowest GPU",
        fix="take the host out (`--limit`); clocks, power and temperature: `nvidia-smi -q -d PERFORMANCE`",
    ),
    Check(
        name="stragglers",
        category=CATEGORY,
        title="no rank comes late to the others",
        judge=_stragglers,
        needs=(FACTS, DIALLED, WORKERS),
        after=_CAUSES,
        symptom="every step takes as long as on the slowest rank, and all others wait in a collective",
        fix="see what else runs there (`top`), and at clocks, power and temperature",
    ),
)
