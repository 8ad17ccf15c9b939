"""Checks of the benchmark run over all hosts (`doctor --bench`): all-reduces, matrix products, ranks that were late."""

from __future__ import annotations

from typing import TYPE_CHECKING

from clusterddp.checks.catalog import rehearsal
from clusterddp.checks.catalog.performance import CATEGORY, rate
from clusterddp.checks.model import Check, Finding, fail, unknown, warn
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

_OF_THE_PAIRS = 0.02  # of what pairs of hosts reach; gloo on two busy cores comes down to 0.1
_BEFORE = ("idle", *rehearsal.CAUSES, "rehearsal")


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
    if last.size >= 1 << 20 and reached < _OF_THE_PAIRS * pairs.usual:
        return f"{rate(reached)} on the bus, and pairs of hosts reach {rate(pairs.usual)}"
    return ""


def _all_reduce(evidence: Evidence) -> Iterable[Finding]:
    bench = evidence.bench
    if bench is None or bench.together is None:
        return
    together = bench.together
    hosts = tuple(seen.name for seen in evidence.hosts)
    yield from (unknown(host, "could not look: it took no part") for host in hosts if host not in together.hosts)
    if together.error:
        yield from _named(together, hosts, "fail", together.error)
        return
    for one in together.measured.reduces:
        if one.wrong:
            are = "is" if one.wrong == 1 else "are"
            message = f"{counted(one.wrong, 'element')} of sums of {counted(one.size, 'byte')} {are} wrong"
            yield Finding(verdict="fail", hosts=together.hosts, message=message, fix=_SDC)
            return
    if slow := slow_all_reduce(bench):
        yield from _named(together, hosts, "warn", slow)


def _named(together: Together, hosts: Sequence[str], verdict: Verdict, text: str) -> Iterable[Finding]:
    """Blame the hosts that bisection found, else those that failed first, else all that took part."""
    named = [host for host in together.at_fault or together.blamed if host in hosts]
    message = f"{text}; groups with it are as bad, others are not" if together.at_fault and named else text
    blamed = tuple(named) or tuple(host for host in hosts if host in together.hosts)
    yield Finding(verdict=verdict, hosts=blamed, message=message, fix=together.remedy)
    others = tuple(host for host in hosts if host in together.hosts and host not in blamed)
    if others and verdict == "fail":
        yield Finding(verdict="skipped", hosts=others, message=f"because of {folded_names(blamed)}")


def _gemm(evidence: Evidence) -> Iterable[Finding]:
    found = evidence.bench.together if evidence.bench else None
    if found is None:
        return
    gemms = found.measured.gemms
    yield from _unmeasured(evidence, found, gemms)
    for one in gemms:
        if one.wrong:
            message = f"{_rank(one)}: {one.wrong} elements of a product differ when it is done again"
            yield fail(one.host, message, symptom="a loss that becomes NaN, or never falls, on some runs only")
    for one in odd_sums(gemms):
        message = f"{_rank(one)}: its product is another than that of the other {one.device}"
        yield fail(one.host, message, symptom="a loss that becomes NaN, or never falls, on some runs only")
    for one, usual in slow_gpus(gemms):
        yield warn(one.host, f"{_rank(one)}: {one.tflops:.0f} TFLOP/s, other {one.device} reach {usual:.0f}")


def _stragglers(evidence: Evidence) -> Iterable[Finding]:
    found = evidence.bench.together if evidence.bench else None
    if found is None:
        return
    lateness = found.measured.lateness
    yield from _unmeasured(evidence, found, lateness)
    for one, times in late_ranks(lateness):
        waited = median(median(other.waited) for other in lateness if other is not one)
        share = waited / max(1.0, waited + median(one.worked))
        message = f"{_rank(one)} needs {times:.1f} times as long for equal work, and the others wait"
        yield warn(one.host, f"{message} {share:.0%} of the time")


def _unmeasured(
    evidence: Evidence, together: Together, results: Sequence[Gemm] | Sequence[Lateness]
) -> Iterable[Finding]:
    """Hosts without a measurement: skipped if the check `allreduce` reports why the run failed, else unknown."""
    there = {one.host for one in results}
    for host in (seen.name for seen in evidence.hosts):
        if host in there:
            continue
        failed = host in together.hosts and together.error
        if failed and together.reduced:
            yield Finding(verdict="skipped", hosts=(host,), message="because of allreduce")
        else:
            yield unknown(host, f"could not look: {failed or 'it told nothing'}")


def _rank(one: Gemm | Lateness) -> str:
    return f"rank {one.rank}"


_SDC = "run with fewer hosts or GPUs until the sums are right, and drain who is left out"

CHECKS = (
    Check(
        name="allreduce",
        category=CATEGORY,
        title="all-reduces over all hosts are right, and not far slower than they should be",
        judge=_all_reduce,
        needs=(FACTS, DIALLED, WORKERS),
        after=_BEFORE,
        symptom="a hang or a timeout in the first collective, or steps that take many times as long",
        fix="look at what NCCL says: `clusterddp run --debug-comm`",
    ),
    Check(
        name="gemm",
        category=CATEGORY,
        title="matrix products are repeatable, and equal GPUs equally fast",
        judge=_gemm,
        needs=(FACTS, DIALLED, WORKERS),
        after=_BEFORE,
        symptom="every step takes as long as on the slowest GPU",
        fix="take the host out (`--limit`); clocks, power and temperature: `nvidia-smi -q -d PERFORMANCE`",
    ),
    Check(
        name="stragglers",
        category=CATEGORY,
        title="no rank comes late to the others",
        judge=_stragglers,
        needs=(FACTS, DIALLED, WORKERS),
        after=_BEFORE,
        symptom="every step takes as long as on the slowest rank, and all others wait in a collective",
        fix="see what else runs there (`top`), and at clocks, power and temperature",
    ),
)
