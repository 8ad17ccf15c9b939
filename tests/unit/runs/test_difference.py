"""What tells two runs apart, by their records."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from clusterddp.remote.shared.run.run_record import RunRecord, read_run_record
from clusterddp.runs.difference import describe_code, differences


def record(**more: Any) -> RunRecord:
    known: dict[str, Any] = {"hosts": ("gpu00", "gpu01"), "script": "train.py", "code": "3f9a2c" + "0" * 58}
    return RunRecord(**{**known, **more})


def told(a: RunRecord, b: RunRecord) -> list[tuple[str, str | None, str | None]]:
    return [(one.what, one.a, one.b) for one in differences(a, b)]


def test_runs_that_are_alike_differ_in_nothing() -> None:
    assert differences(record(run="a", name="x", started=1), record(run="b", started=2)) == []


def test_each_difference_is_told_with_both_sides() -> None:
    a = record(argv=("--lr", "3e-4"), versions={"torch": "2.3", "driver": "550"}, variables={"LR": "1", "A": "x"})
    b = record(
        code="77ab01" + "0" * 58,
        argv=("--lr", "1e-4", "a b"),
        hosts=("gpu00", "gpu02", "gpu03"),
        versions={"torch": "2.4", "driver": "550"},
        variables={"LR": "2"},
        environment="4be1" + "0" * 60,
        options={"nnodes": "2:4", "no_sync": True, "env": {"LR": "2"}},
        gpus={"gpu00": ("A100", "A100"), "gpu02": ("A100", "A100")},
        git={"commit": "0123456789abcdef", "dirty": True},
        module=True,
        secrets=("HF_TOKEN",),
    )
    assert told(a, b) == [
        ("code", "3f9a2c", "77ab01"),
        ("git", None, "0123456789ab, changed"),
        ("environment", None, "4be1"),
        ("script", "train.py", "-m train.py"),
        ("arguments", "--lr 3e-4", "--lr 1e-4 'a b'"),
        ("hosts", "gpu00, gpu01", "gpu00, gpu02, gpu03"),
        ("GPUs", None, "2 × A100 on gpu00, gpu02"),
        ("version of torch", "2.3", "2.4"),
        ("variable A", "x", None),
        ("variable LR", "1", "2"),
        ("secret HF_TOKEN", None, "********"),
        ("option --nnodes", None, "2:4"),
        ("option --no-sync", None, "true"),
    ]


def test_a_run_of_an_earlier_version_has_less_to_tell() -> None:
    old = read_run_record({"hosts": ["gpu00", "gpu01"], "script": "train.py", "code": record().code})
    assert told(old, record(options={"max_restarts": 1})) == [("option --max-restarts", None, "1")]
    assert describe_code(old) == "code 3f9a2c"
    assert describe_code(RunRecord(hosts=())) == ""


@given(st.dictionaries(st.sampled_from("abc"), st.text()), st.dictionaries(st.sampled_from("abc"), st.text()))
def test_differences_are_the_same_both_ways(a: dict[str, str], b: dict[str, str]) -> None:
    there = differences(record(variables=a), record(variables=b))
    back = differences(record(variables=b), record(variables=a))
    assert there == [replace(one, a=one.b, b=one.a) for one in back]
