"""What the doctor makes of a rehearsal: how far each host came, and who is to blame."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from clusterddp.checks.catalog.rehearsal import STAGES
from clusterddp.checks.engine import judge, select
from clusterddp.checks.evidence import Evidence, RehearsalEvidence
from tests.unit.evidence_made import black_holes, cluster, said, seen

HOSTS = ("gpu01", "gpu02", "gpu03")
WORDS = "rank 1 (gpu02:0) failed first: RuntimeError: Unable to find address for: ib9"


def rehearsed(*stages: str, **fields: Any) -> Evidence:
    """Three hosts, and the last stage that each has told."""
    reached = dict(zip(HOSTS, stages, strict=True))
    return replace(cluster(), rehearsal=RehearsalEvidence(reached=reached, **fields))


def told(evidence: Evidence) -> list[tuple[str, tuple[str, ...], str]]:
    results = judge(evidence, select())
    return [(one.verdict, one.hosts, one.message) for one in results if one.name == "rehearsal"]


def test_hosts_that_came_through_pass_and_say_how_long_it_took() -> None:
    evidence = rehearsed("barrier", "barrier", "barrier", seconds=5.25, backend="nccl")
    assert told(evidence) == [("pass", HOSTS, "nccl over 3 hosts: all-reduce checked in 5.2 s")]


def test_gloo_in_place_of_nccl_is_said() -> None:
    (one,) = told(rehearsed("barrier", "barrier", "barrier", why="no GPU of gpu02 is free"))
    assert "gloo (not NCCL: no GPU of gpu02 is free) over 3 hosts" in one[2]


def test_a_failure_names_its_host_the_stage_and_the_first_cause() -> None:
    came = ("import torch",) * 3
    evidence = rehearsed(*came, blamed=("gpu02",), failure=WORDS, remedy="unset it")
    message = f"gpu[01:03] came to 'import torch', not to 'process group': {WORDS}"
    assert told(evidence) == [("fail", ("gpu02",), message), ("skipped", ("gpu01", "gpu03"), "because of gpu02")]
    (result,) = [one for one in judge(evidence, select()) if one.verdict == "fail"]
    assert result.fix == "unset it"


def test_a_hang_names_all_hosts_and_how_far_each_came() -> None:
    (one,) = told(rehearsed("process group", "import torch", "process group", seconds=20.0))
    assert one[:2] == ("fail", HOSTS)
    assert one[2] == (
        "it hung: gpu02 came to 'import torch', not to 'process group'; "
        "gpu01, gpu03 came to 'process group', not to 'all-reduce' within 20 s"
    )


@pytest.mark.parametrize("stage", ["", "rendezvous"])
def test_what_may_only_be_a_slow_import_is_unknown(stage: str) -> None:
    (one,) = told(rehearsed("import torch", stage, "import torch", seconds=20.0))
    assert (one[0], one[1]) == ("unknown", HOSTS)


def test_one_that_could_not_start_says_why() -> None:
    seen_ = RehearsalEvidence(blamed=("gpu03",), failure="gpu03: no free port in 29400-29499 for the rendezvous")
    first, _ = told(replace(cluster(), rehearsal=seen_))
    assert first == ("fail", ("gpu03",), f"it did not start: {seen_.failure}")


def test_what_may_be_left_is_a_warning() -> None:
    evidence = rehearsed(*["barrier"] * 3, left={"gpu02": "gpu02: the connection was lost"})
    assert [(one[0], one[1]) for one in told(evidence)] == [("warn", ("gpu02",)), ("pass", ("gpu01", "gpu03"))]


def test_a_host_that_something_else_is_wrong_with_is_skipped() -> None:
    sick = seen("gpu02", *HOSTS, shm_bytes_free=1 << 20)
    reached = {"gpu01": "barrier", "gpu03": "barrier"}
    evidence = replace(cluster(sick), rehearsal=RehearsalEvidence(reached=reached))
    assert [(one[0], one[1]) for one in told(evidence)] == [("skipped", ("gpu02",)), ("pass", ("gpu01", "gpu03"))]


def test_a_black_hole_is_told_once() -> None:
    reached = {"gpu01": "barrier", "gpu03": "barrier"}
    evidence = cluster(failures=black_holes("gpu02", HOSTS), rehearsal=RehearsalEvidence(reached=reached))
    assert said(evidence) == [("black-hole", "fail", ("gpu02",))]
    assert [(one[0], one[1]) for one in told(evidence)] == [("skipped", ("gpu02",)), ("pass", ("gpu01", "gpu03"))]


def test_without_a_rehearsal_nothing_is_known() -> None:
    assert [one[0] for one in told(cluster(rehearsal=None))] == ["unknown"]


def test_its_program_tells_the_stages_of_the_check_in_order() -> None:
    from importlib.resources import files  # noqa: PLC0415

    text = files("clusterddp.remote.builtin").joinpath("rehearse.py").read_text(encoding="utf-8")
    places = [text.index(f'print_stage("{stage}")') for stage in STAGES]
    assert places == sorted(places)


def test_only_other_checks_do_not_rehearse() -> None:
    assert "rehearsal" not in {check.name for check in select(["Network"])}
    assert {"network", "torch", "rehearsal"} <= {check.name for check in select(["rehearsal"])}
