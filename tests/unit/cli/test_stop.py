"""What `stop` says of a proof, and its exit code."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from clusterddp.cli.actions import stop_action
from clusterddp.cli.output import report_proofs
from clusterddp.errors import HelperError
from clusterddp.remote.shared.run.run_record import RunRecord
from clusterddp.remote.shared.run.stop_records import NodeProof, stop_answer
from clusterddp.runs.proof import Proof, Survivor, of_answer

if TYPE_CHECKING:
    from collections.abc import Mapping

STUCK = Survivor(7, "python train.py", "D")
ROOTS = Survivor(8, "sudo cp", "S", "root")

SAID: list[tuple[Mapping[str, Any], int, str]] = [
    ({"found": 5}, 0, "5 processes ended, proved empty"),
    ({"found": 1, "killed": 1}, 0, "1 process ended (1 by SIGKILL), proved empty"),
    ({}, 0, "0 processes ended, proved empty"),
    ({"found": 9, "gpus": 8}, 0, "9 processes ended, no GPU held, proved empty"),
    (
        {"found": 4, "killed": 2, "survivors": (STUCK, ROOTS), "gpus": 8},
        1,
        (
            "2 processes ended (2 by SIGKILL), still there: "
            "7 (python train.py; in a sleep that no signal ends), 8 (sudo cp; of user root)"
        ),
    ),
    (
        {"found": 2, "unknown": ("nothing seen", "nor heard")},
        1,
        "2 processes ended, not proved: nothing seen; nor heard",
    ),
]


@pytest.mark.parametrize(("told", "code", "line"), SAID, ids=[line[:30] for _, _, line in SAID])
def test_a_host_that_answered(
    capsys: pytest.CaptureFixture[str], told: Mapping[str, Any], code: int, line: str
) -> None:
    proof = Proof(host="gpu00", **told)
    assert proof.proved_empty == (code == 0)
    assert report_proofs("r1", [proof]) == code
    assert capsys.readouterr().err == f"clusterddp: r1: gpu00: {line}\n"


def test_a_host_that_did_not_answer_and_one_that_did(capsys: pytest.CaptureFixture[str]) -> None:
    assert report_proofs("r1", [Proof(host="gpu00", found=1), Proof(host="gpu01", error="gpu01: no route")]) == 1
    said = capsys.readouterr().err.splitlines()
    assert said == [
        "clusterddp: r1: gpu00: 1 process ended, proved empty",
        "clusterddp: r1: gpu01: no route; `clusterddp stop r1` again finishes the work",
    ]


@pytest.mark.parametrize("hosts", [(), ("gpu01",), ("gpu00", "gpu01")])
def test_an_answer_that_is_not_about_the_host_proves_nothing(hosts: tuple[str, ...]) -> None:
    nodes = tuple(NodeProof(host, 0, 0, (), (), None) for host in hosts)
    with pytest.raises(HelperError, match="gpu00: its answer to the stop says nothing of its node, or of others"):
        of_answer("gpu00", stop_answer(nodes))


def test_hosts_of_the_run_that_limit_leaves_out_are_named_also_lost_ones(capsys: pytest.CaptureFixture[str]) -> None:
    run: Any = SimpleNamespace(
        id="r1",
        cluster=SimpleNamespace(inventory=SimpleNamespace(pattern="gpu00")),
        hosts={"gpu00", "gpu01"},
        record=RunRecord(hosts=("gpu00", "gpu01"), lost=("gpu02",)),
        stop=lambda **_: [Proof(host="gpu00", found=1)],
        stopped=lambda _: None,
    )
    run.latest = lambda: run
    assert stop_action._stop(run, 1.0) == 0
    said = capsys.readouterr().err.splitlines()
    assert said[1:] == ["clusterddp: gpu01, gpu02: not asked (--limit gpu00), so nothing is proved there"]
