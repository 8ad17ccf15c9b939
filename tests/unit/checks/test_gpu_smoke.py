"""GPUs tried by a torch that is made: how it starts, computes and copies is told, GPU by GPU.

What a real torch without GPUs says stands at the end. The whole operation is asked on lab hosts
(tests/integration/doctor/test_doctor_gpus.py).
"""

from __future__ import annotations

import json
import os
import sys
from typing import TYPE_CHECKING, Any

import pytest

from clusterddp.facts.read_facts import read_answer
from clusterddp.remote.probes import torch_gpus
from clusterddp.remote.shared.probes.facts_records import PythonQuery
from clusterddp.remote.shared.probes.gpu_records import GpuCopies, GpuHealth, GpuHealthRequest, GpuSmokeTest
from clusterddp.remote.shared.schema.record import to_fields
from tests.unit.facts_made import gpu_health_json
from tests.unit.torch_made import TORCH
from tests.with_torch import need_torch

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def attempt(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Try so many GPUs of a made torch, each as told: well, hang, crash, raise, wrong; pairs: hang, garbage."""
    (tmp_path / "torch.py").write_text(TORCH)
    monkeypatch.setattr(torch_gpus, "START_TIMEOUT", 20.0)
    monkeypatch.setattr(torch_gpus, "COPY_TIMEOUT", 20.0)

    def smoke_test(count: int, **told: Any) -> GpuSmokeTest:
        (tmp_path / "told.json").write_text(json.dumps({name.lstrip("_"): word for name, word in told.items()}))
        job = PythonQuery(python=sys.executable, env={"PYTHONPATH": str(tmp_path)})
        found = torch_gpus.try_gpus(GpuHealthRequest(job, count), dict(os.environ))
        assert found is not None
        assert read_answer(GpuHealth, "here", gpu_health_json(smoke_test=to_fields(found))).smoke_test == found
        return found

    return smoke_test


def test_gpus_that_are_well_start_and_copy(attempt: Any) -> None:
    found = attempt(3)
    assert found.error is None
    assert [(one.number, one.error, one.capability) for one in found.starts] == [
        (index, None, (9, 0)) for index in range(3)
    ]
    assert found.starts[0].arches == ("sm_90", "compute_90")
    assert found.peers == GpuCopies(tried=6)


def test_one_gpu_has_nobody_to_copy_to(attempt: Any) -> None:
    assert attempt(1).peers is None


def test_gpus_that_do_not_reach_each_other_are_not_copied_between(attempt: Any) -> None:
    assert attempt(2, peers=False).peers.tried == 0


@pytest.mark.parametrize(
    ("word", "error"),
    [
        ("raise", "CUDA error: system not yet initialized"),
        ("wrong", "it adds 0 and 1 and gets another number"),
        ("crash", "torch ended with status -11"),
    ],
)
def test_a_gpu_that_does_not_start_takes_nothing_from_the_others(attempt: Any, word: str, error: str) -> None:
    found = attempt(3, _1=word)
    assert [one.error for one in found.starts] == [None, error, None]
    assert found.peers is None


def test_a_gpu_that_hangs_is_given_up(attempt: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch_gpus, "START_TIMEOUT", 3.0)
    found = attempt(1, _0="hang")
    assert [one.error for one in found.starts] == ["no answer within 3 s"]


def test_a_copy_that_hangs_is_named_with_its_pair(attempt: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch_gpus, "COPY_TIMEOUT", 6.0)
    found = attempt(2, **{"1-0": "hang"})
    assert found.peers == GpuCopies(hangs=(1, 0), tried=1)


def test_what_arrives_changed_is_named_with_its_pair(attempt: Any) -> None:
    found = attempt(2, **{"0-1": "garbage"})
    assert found.peers == GpuCopies(wrong=((0, 1),), tried=2)


def test_more_gpus_than_are_tried_at_once_are_all_tried(attempt: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch_gpus, "MAX_AT_ONCE", 2)
    assert [one.number for one in attempt(5).starts] == [0, 1, 2, 3, 4]


def test_without_gpus_nothing_is_started() -> None:
    assert torch_gpus.try_gpus(GpuHealthRequest(PythonQuery(python="/nope"), 0), {}) is None


def test_an_interpreter_that_is_not_there_is_told() -> None:
    found = torch_gpus.try_gpus(GpuHealthRequest(PythonQuery(python="/nope/python"), 1), dict(os.environ))
    assert found is not None
    assert "no /nope/python" in (found.error or "")


def test_a_torch_without_cuda_says_so() -> None:
    need_torch()
    found = torch_gpus.try_gpus(GpuHealthRequest(PythonQuery(python=sys.executable), 1), dict(os.environ))
    assert found is not None
    assert "CUDA" in (found.starts[0].error or "") or found.starts[0].capability
