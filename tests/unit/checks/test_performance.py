"""The judgements of what was measured, over made measurements."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from clusterddp.checks.engine import judge, select
from clusterddp.checks.evidence import Evidence, RunEvidence
from clusterddp.facts.bench import Bench, Together
from clusterddp.facts.bench_results import AllReduce, Gemm, Lateness, Measured
from clusterddp.facts.speeds import Speed
from clusterddp.remote.shared.probes.health_records import PortOwner
from tests.unit.evidence_made import cluster, failure, seen
from tests.unit.facts_made import gpus

if TYPE_CHECKING:
    from clusterddp.checks.model import CheckResult

NAMES = ("gpu01", "gpu02", "gpu03")


def speeds(**mbit: float) -> tuple[Speed, ...]:
    """Between three hosts on links of 1 Gbit/s; ``gpu01_gpu02=5`` changes a way, ``gpu01=5`` all of a host's."""
    found = []
    for one in NAMES:
        for other in NAMES:
            if one != other:
                usual = min(mbit.get(one, 940), mbit.get(other, 940))
                size = int(mbit.get(f"{one}_{other}", usual) * 125e3)
                found.append(Speed(source=one, target=other, size=size, ns=10**9))
    return tuple(found)


def said(evidence: Evidence, name: str) -> list[tuple[str, tuple[str, ...], str]]:
    results: list[CheckResult] = judge(evidence, select(bench=True))
    return [(one.verdict, tuple(sorted(one.hosts)), one.message) for one in results if one.name == name]


def measured(**fields: Any) -> Evidence:
    return cluster(bench=Bench(**{"speeds": speeds(), **fields}))


def test_equal_speeds_pass() -> None:
    assert said(measured(), "bandwidth") == [("pass", NAMES, "TCP flows equally fast between all hosts")]
    assert said(measured(), "idle")[0][0] == "pass"


def test_a_slow_host_is_named_alone() -> None:
    found = said(measured(speeds=speeds(gpu02=96)), "bandwidth")
    assert found[0] == ("warn", ("gpu02",), "sends and receives 96 Mbit/s, others reach 940 Mbit/s")
    assert found[1][:2] == ("pass", ("gpu01", "gpu03"))


def test_a_slow_way_is_named_with_both_its_ends() -> None:
    found = said(measured(speeds=speeds(gpu01_gpu03=96)), "bandwidth")
    assert found[0] == ("warn", ("gpu01", "gpu03"), "gpu01 → gpu03: 96 Mbit/s, others reach 940 Mbit/s")


def test_all_slow_on_fast_links_is_told() -> None:
    found = said(measured(speeds=speeds(gpu01=90, gpu02=90, gpu03=90)), "bandwidth")
    assert found == [("warn", NAMES, "all hosts: 90 Mbit/s at best on links of 1.0 Gbit/s")]


def test_a_way_without_answer_is_unknown_unless_the_dials_told_it() -> None:
    dead = (*speeds()[1:], Speed(source="gpu01", target="gpu02", error="timeout"))
    found = said(measured(speeds=dead), "bandwidth")
    assert found[0] == ("unknown", ("gpu01",), "could not look: gpu01 → gpu02: timeout")
    shut = (failure("gpu01", "gpu02", ranged=True),)
    known = cluster(failures=shut, bench=Bench(speeds=dead))
    assert [one for one in said(known, "bandwidth") if one[0] == "unknown"] == []


def test_one_machine_has_no_pair() -> None:
    found = said(measured(speeds=(), alone="for want of a second machine"), "bandwidth")
    assert found == [("skipped", NAMES, "for want of a second machine")]


def test_nothing_measured_is_unknown() -> None:
    assert said(cluster(), "bandwidth") == [("unknown", NAMES, "could not look: nothing was measured")]


def busy(owner: str) -> Evidence:
    health = {"owners": {4711: PortOwner(user=owner, command="python train.py")}}
    cards = tuple(replace(gpu, used_mib=9000) for gpu in gpus(1, busy=(0,)))
    one = seen("gpu02", *NAMES, devices=1, gpus=cards, health=health)
    return cluster(one, bench=Bench(refused=True))


def test_it_refuses_where_a_gpu_is_busy_and_names_whose_it_is() -> None:
    words = "GPU 0 is busy: alice's python train.py (pid 4711), 9000 MiB used"
    assert said(busy("alice"), "idle")[0] == ("fail", ("gpu02",), words)
    assert said(busy("alice"), "bandwidth")[0] == ("skipped", NAMES, "because of idle")
    assert said(busy("bob"), "busy-gpus")[0] == ("fail", ("gpu02",), words.replace("alice", "bob"))
    assert said(busy("bob"), "idle")[0] == ("fail", ("gpu02",), words.replace("alice", "bob"))
    assert said(busy("bob"), "bandwidth")[0] == ("skipped", NAMES, "because of idle")


def test_it_refuses_beside_a_live_run() -> None:
    runs = (RunEvidence(run="r1", operator="bob@desk", hosts=("gpu01",)),)
    evidence = cluster(runs=runs, bench=Bench(refused=True))
    assert said(evidence, "idle")[0] == ("fail", ("gpu01",), "run r1 of bob@desk is live")
    left = (RunEvidence(run="r2", hosts=("gpu01",), left={"gpu01": (5,)}),)
    assert said(replace(measured(), runs=left), "idle")[0][0] == "pass"


def test_json_has_what_was_measured() -> None:
    bench = Bench(label="10.0.0.0/24", speeds=speeds()[:1])
    pair = {"source": "gpu01", "target": "gpu02", "mbit": 940.0, "error": None}
    told = bench.to_json()
    assert (told["network"], told["pairs"], told["backend"]) == ("10.0.0.0/24", [pair], None)
    told = replace(bench, together=together()).to_json()
    assert told["backend"] == "gloo"
    assert told["allreduce"][0]["busbw"] == 0.089
    assert [one["host"] for one in told["gemm"]] == list(NAMES)
    assert told["ranks"][0] == {"host": "gpu01", "rank": 0, "worked_ms": 0.0, "waited_ms": 0.0}


def gemms(**fields: Any) -> tuple[Gemm, ...]:
    """One on each host; a field is a value for all, or one for each."""
    found = []
    for rank, host in enumerate(NAMES):
        own = {name: value[rank] if isinstance(value, tuple) else value for name, value in fields.items()}
        usual: dict[str, Any] = {"device": "", "type": "float32", "size": 512, "ns": 10**7, "p95_ns": 10**7}
        found.append(Gemm(host=host, rank=rank, **{**usual, "wrong": 0, "sum": "1", **own}))
    return tuple(found)


def together(worked: tuple[int, ...] = (500, 500, 500), **fields: Any) -> Together:
    reduced = AllReduce(
        size=1 << 26, count=1 << 24, type="float", redop="sum", world=3, ns=10**9, p95_ns=10**9, rounds=5,
        wrong=fields.pop("wrong", 0),
    )  # fmt: skip
    late = tuple(
        Lateness(host=host, rank=rank, worked=(worked[rank],), waited=(500,)) for rank, host in enumerate(NAMES)
    )
    measured = Measured(gemms=fields.pop("gemms", gemms()), reduces=(reduced,), lateness=late)
    return Together(**{"hosts": NAMES, "backend": "gloo", "measured": measured, **fields})


def of_run(name: str, **fields: Any) -> list[tuple[str, tuple[str, ...], str]]:
    return said(measured(together=together(**fields)), name)


@pytest.mark.parametrize("name", ["allreduce", "gemm", "stragglers"])
def test_a_run_in_which_all_is_well_passes(name: str) -> None:
    assert [one[:2] for one in of_run(name)] == [("pass", NAMES)]


def test_a_run_that_failed_is_told_once_with_who_failed_first() -> None:
    failed: dict[str, Any] = {"error": "rank 1 (gpu02:0) failed", "blamed": ("gpu02",)}
    evidence = measured(together=replace(together(**failed), measured=Measured()))
    assert said(evidence, "allreduce") == [
        ("fail", ("gpu02",), "rank 1 (gpu02:0) failed"),
        ("skipped", ("gpu01", "gpu03"), "because of gpu02"),
    ]
    for name in ("gemm", "stragglers"):
        assert said(evidence, name) == [("skipped", NAMES, "because of allreduce")]


@pytest.mark.parametrize("name", ["gemm", "stragglers"])
def test_a_run_that_failed_without_all_reduces_leaves_its_checks_unknown(name: str) -> None:
    failed = together(error="rank 1 (gpu02:0) failed", blamed=("gpu02",), reduced=False)
    evidence = measured(together=replace(failed, measured=Measured()))
    assert said(evidence, name) == [("unknown", NAMES, "could not look: rank 1 (gpu02:0) failed")]


def test_who_was_told_apart_by_groups_is_named_before_who_failed_first() -> None:
    found = of_run("allreduce", error="timed out", blamed=("gpu01",), at_fault=("gpu03",))
    assert found[0] == ("fail", ("gpu03",), "timed out; groups with it are as bad, others are not")
    assert of_run("allreduce", error="it did not end within 90 s")[0][1] == NAMES


def test_wrong_sums_fail_on_all_since_nobody_knows_whose_they_are() -> None:
    words = "3 elements of sums of 67108864 bytes are wrong"
    assert of_run("allreduce", wrong=3) == [("fail", NAMES, words)]


def test_a_product_that_differs_from_itself_fails() -> None:
    found = of_run("gemm", gemms=gemms(wrong=(0, 5, 0)))
    assert found[0] == ("fail", ("gpu02",), "rank 1: 5 elements of a product differ when it is done again")


def test_an_odd_gpu_is_named_and_the_speed_of_cpus_is_not_judged() -> None:
    card = {"device": "H200", "size": 8192}
    found = of_run("gemm", gemms=gemms(**card, ns=(1_500_000, 1_500_000, 3_000_000)))
    assert found[0] == ("warn", ("gpu03",), "rank 2: 367 TFLOP/s, other H200 reach 733")
    found = of_run("gemm", gemms=gemms(**card, sum=("1", "2", "1")))
    assert found[0] == ("fail", ("gpu02",), "rank 1: its product is another than that of the other H200")
    assert of_run("gemm", gemms=gemms(ns=(10**7, 10**7, 10**9)))[0][0] == "pass"


def test_a_late_rank_is_named_alone() -> None:
    found = of_run("stragglers", worked=(500, 1000, 500))
    words = "rank 1 needs 2.0 times as long for equal work, and the others wait 33% of the time"
    assert found == [("warn", ("gpu02",), words), ("pass", ("gpu01", "gpu03"), "no rank comes late to the others")]


def test_a_host_that_took_no_part_is_unknown() -> None:
    two = together(hosts=NAMES[:2])
    part = replace(two.measured, lateness=two.measured.lateness[:2], gemms=two.measured.gemms[:2])
    evidence = measured(together=replace(two, measured=part))
    for name in ("allreduce", "gemm", "stragglers"):
        assert said(evidence, name)[0][:2] == ("unknown", ("gpu03",))
    assert said(measured(), "allreduce") == [("unknown", NAMES, "could not look: no host could take part")]


def test_an_all_reduce_far_below_the_pairs_is_told_unless_a_slow_host_explains_it() -> None:
    fast = tuple(replace(one, size=one.size * 1000) for one in speeds())
    found = said(measured(speeds=fast, together=together()), "allreduce")
    assert found == [("warn", NAMES, "716 Mbit/s on the bus, and pairs of hosts reach 940.0 Gbit/s")]
    slow = tuple(replace(one, size=10**6) if "gpu02" in (one.source, one.target) else one for one in fast)
    assert said(measured(speeds=slow, together=together()), "allreduce")[0][0] == "pass"


def test_an_all_reduce_far_below_a_models_figure_is_told() -> None:
    card = Gemm(
        host="gpu01", rank=0, device="NVIDIA H200", type="bfloat16", size=8192, ns=1, p95_ns=1, wrong=0, sum="1"
    )
    eight = tuple(replace(card, rank=rank) for rank in range(8))
    reduced = AllReduce(
        size=1 << 30, count=1 << 28, type="float", redop="sum", world=8, ns=20 * 10**6, p95_ns=1, rounds=20, wrong=0
    )
    run = Together(hosts=("gpu01",), backend="nccl", measured=Measured(gemms=eight, reduces=(reduced,)))
    words = "94 GB/s on the bus, such machines reach 431 (the least that Azure's health checks take)"
    assert said(cluster(count=1, bench=Bench(together=run)), "allreduce") == [("warn", ("gpu01",), words)]
