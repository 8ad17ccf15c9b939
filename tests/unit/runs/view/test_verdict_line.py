"""The line of a verdict: who had left early stands in it, and a long message keeps its place and its end."""

from __future__ import annotations

from signal import SIGTERM
from typing import Any

import pytest

from clusterddp.remote.shared.verdict.judge import EarlyExit
from tests.unit.runs_told import Told, at, verdict

RESET = "torch.distributed.DistBackendError: Connection closed by peer [10.0.0.2]:4242"


def test_a_rank_that_left_early_is_named_beside_its_victim() -> None:
    left = Told(1).died(4, signals_received=[]).succeeded(5)
    victim = Told(0).died(4.01, raised=RESET).failed(5)
    assert verdict(victim, left).record.early == (EarlyExit("gpu01", 1, 0),)
    assert verdict(victim, left).line == (
        f"rank 0 (gpu00:0) failed first: {RESET} (train.py:81); rank 1 (gpu01:0) had ended with exit code 0 before"
    )


@pytest.mark.parametrize("host", [0, 1], ids=["on the victim's host", "on another"])
def test_a_rank_that_left_early_is_named_though_its_end_was_noticed_after_its_victims(host: int) -> None:
    if host:
        nodes = [Told(0).died(4.01, raised=RESET).failed(5), Told(1).died(4.4, signals_received=[]).succeeded(5)]
    else:
        nodes = [Told(0, workers=2).died(4.01, raised=RESET).died(4.4, local=1, signals_received=[]).failed(5)]
    assert verdict(*nodes).line == (
        f"rank 0 (gpu00:0) failed first: {RESET} (train.py:81); "
        f"rank 1 (gpu0{host}:{1 - host}) had ended with exit code 0 before"
    )


def test_a_rank_that_left_early_is_named_though_its_teardown_took_long_as_its_victims_did() -> None:
    victim = Told(0).died(6.1, raised=RESET, raised_at=4.01).failed(7)
    assert verdict(victim, Told(1, offset=3).died(5.9, signals_received=[]).succeeded(7)).record.early
    assert not verdict(victim, Told(1).died(6.2, signals_received=[]).succeeded(7)).record.early


@pytest.mark.parametrize(
    ("seconds", "told"), [(4.4, [[SIGTERM, at(4.2)]]), (7, [])], ids=["told to end", "long after it"]
)
def test_a_rank_that_ends_well_because_another_failed_is_not_said_to_have_left(seconds: float, told: Any) -> None:
    nodes = [Told(0).died(4.01, raised=RESET).failed(5), Told(1).died(seconds, signals_received=told).succeeded(8)]
    assert verdict(*nodes).line == f"rank 0 (gpu00:0) failed first: {RESET} (train.py:81)"
    assert verdict(*nodes).record.early == ()


def test_the_verdict_keeps_place_and_tail_of_a_long_message() -> None:
    node = Told(0, workers=2).died(5, raised=f"RuntimeError: {'x' * 600} GLHF!").died(6, local=1, signal=SIGTERM)
    found = verdict(node.failed(7))
    cut = found.line.replace("x", "")
    assert cut == "rank 0 (gpu00:0) failed first: RuntimeError: … GLHF! (train.py:81); 1 other stopped"
