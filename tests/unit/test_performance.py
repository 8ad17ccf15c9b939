"""The judgements of what was measured, over made measurements."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from clusterddp.checks import CheckResult, Evidence, RunSeen, judge, select
from clusterddp.facts import Bench, Owner, Speed
from tests.unit.evidence_made import cluster, failure, seen
from tests.unit.facts_made import gpus

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
    health = {"owners": {4711: Owner(user=owner, command="python train.py")}}
    cards = tuple(replace(gpu, used_mib=9000) for gpu in gpus(1, busy=(0,)))
    one = seen("gpu02", *NAMES, devices=1, gpus=cards, health=health)
    return cluster(one, bench=Bench(refused=True))


def test_it_refuses_where_a_gpu_is_busy_and_names_whose_it_is() -> None:
    words = "GPU 0 is busy: alice's python train.py (pid 4711), 9000 MiB used"
    assert said(busy("alice"), "idle")[0] == ("fail", ("gpu02",), words)
    assert said(busy("alice"), "bandwidth")[0] == ("skipped", NAMES, "because of idle")
    assert said(busy("bob"), "busy-gpus")[0] == ("fail", ("gpu02",), words.replace("alice", "bob"))
    assert ("skipped", ("gpu02",), "because of busy-gpus") in said(busy("bob"), "idle")
    assert said(busy("bob"), "bandwidth")[0] == ("skipped", NAMES, "because of idle")


def test_it_refuses_beside_a_live_run() -> None:
    runs = (RunSeen(run="r1", operator="bob@desk", hosts=("gpu01",)),)
    evidence = cluster(runs=runs, bench=Bench(refused=True))
    assert said(evidence, "idle")[0] == ("fail", ("gpu01",), "run r1 of bob@desk is live")
    left = (RunSeen(run="r2", hosts=("gpu01",), left={"gpu01": (5,)}),)
    assert said(replace(measured(), runs=left), "idle")[0][0] == "pass"


def test_json_has_what_was_measured() -> None:
    bench = Bench(label="10.0.0.0/24", speeds=speeds()[:1])
    pair = {"source": "gpu01", "target": "gpu02", "mbit": 940.0, "error": None}
    assert bench.to_json() == {"network": "10.0.0.0/24", "pairs": [pair]}
