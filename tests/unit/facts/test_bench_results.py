"""What the bench's workers tell: read, in nccl-tests' columns, and who of them stands out."""

from __future__ import annotations

from typing import Any

import pytest

from clusterddp.errors import HelperError
from clusterddp.facts.bench_results import (
    AllReduce,
    Gemm,
    Lateness,
    Measured,
    expected_busbw,
    late_ranks,
    odd_sums,
    slow_gpus,
)

GEMM = {"what": "gemm", "device": "H200", "type": "bfloat16", "size": 8192, "ns": 10**9, "p95_ns": 2 * 10**9}
REDUCE = {"what": "allreduce", "size": 1 << 20, "count": 1 << 18, "type": "float", "redop": "sum", "world": 4}
# Of three ranks on two cores with a load of 5 to 8: two clean runs, then two in which rank 1 was stopped 100 ms of 150.
CLEAN = [(1070, 1202, 1090), (892, 884, 700)]
STOPPED = [(439, 1137, 447), (431, 847, 396)]


def gemm(rank: int, **fields: Any) -> Gemm:
    values: dict[str, Any] = {
        "host": f"gpu{rank // 8:02}", "rank": rank, "device": "NVIDIA H100 80GB HBM3", "type": "bfloat16",
        "size": 8192, "ns": 1_500_000 + rank * 1000, "p95_ns": 1_600_000, "wrong": 0, "sum": "7.5",
    }  # fmt: skip
    return Gemm(**{**values, **fields})


def lateness(*worked: int, blocks: int = 7) -> list[Lateness]:
    return [
        Lateness(host=f"gpu{rank:02}", rank=rank, worked=(one * 10**6,) * blocks, waited=(10**8,) * blocks)
        for rank, one in enumerate(worked)
    ]


def test_lines_become_values_in_the_order_of_ranks() -> None:
    late: dict[str, Any] = {"what": "late", "worked": [5, 6], "waited": [1, 2]}
    gemm_line = {**GEMM, "wrong": 0, "sum": "1.5"}
    reduce = {**REDUCE, "ns": 1000, "p95_ns": 2000, "rounds": 20, "wrong": 0}
    lines = [("gpu01", 1, late), ("gpu01", 1, {"what": "end"}), ("gpu01", 1, gemm_line), ("gpu00", 0, gemm_line)]
    found = Measured.from_lines([*lines, ("gpu00", 0, reduce)])
    assert [(one.host, one.rank) for one in found.gemms] == [("gpu00", 0), ("gpu01", 1)]
    assert found.reduces[0].count == 1 << 18
    assert found.lateness == (Lateness(host="gpu01", rank=1, worked=(5, 6), waited=(1, 2)),)


@pytest.mark.parametrize("line", [{"what": "gemm"}, {**REDUCE, "ns": -1}, {"what": "late", "worked": "x"}])
def test_a_damaged_line_is_an_error_of_its_host(line: dict[str, Any]) -> None:
    with pytest.raises(HelperError, match="gpu07"):
        Measured.from_lines([("gpu07", 3, line)])


def test_the_columns_are_those_of_nccl_tests() -> None:
    one = AllReduce(
        size=1 << 30, count=1 << 28, type="float", redop="sum", world=8,
        ns=4_000_000, p95_ns=5_000_000, rounds=20, wrong=0,
    )  # fmt: skip
    assert one.algbw == pytest.approx(268.435456)
    assert one.busbw == pytest.approx(one.algbw * 2 * 7 / 8)
    assert one.to_json() == {
        "size": 1 << 30, "count": 1 << 28, "type": "float", "redop": "sum", "time_us": 4000.0, "time_p95_us": 5000.0,
        "algbw": 268.435, "busbw": 469.762, "wrong": 0, "rounds": 20,
    }  # fmt: skip


def test_operations_are_two_for_each_product() -> None:
    assert gemm(0, ns=1_000_000).tflops == pytest.approx(2 * 8192**3 / 1e9)


@pytest.mark.parametrize("worked", CLEAN)
def test_who_shares_busy_cores_is_not_late(worked: tuple[int, ...]) -> None:
    assert late_ranks(lateness(*worked)) == []


@pytest.mark.parametrize("worked", STOPPED)
def test_who_is_stopped_now_and_then_is_named_alone(worked: tuple[int, ...]) -> None:
    ((one, times),) = late_ranks(lateness(*worked))
    assert one.rank == 1
    assert times > 2


def test_a_single_hiccup_is_nothing() -> None:
    ranks = lateness(500, 500, 500)
    hiccup = Lateness(host="gpu00", rank=0, worked=(9 * 10**9, *ranks[0].worked[1:]), waited=ranks[0].waited)
    assert late_ranks([hiccup, *ranks[1:]]) == []


def test_of_two_ranks_the_slower_is_named_and_one_alone_never() -> None:
    assert [one.rank for one, _ in late_ranks(lateness(400, 1000))] == [1]
    assert late_ranks(lateness(400)) == []
    assert late_ranks(lateness(0, 0)) == []


def test_a_slow_gpu_stands_out_of_its_model() -> None:
    eight = [gemm(rank) for rank in range(8)]
    assert slow_gpus(eight) == []
    ((one, usual),) = slow_gpus([*eight[:3], gemm(3, ns=1_700_000), *eight[4:]])
    assert one.rank == 3
    assert usual == pytest.approx(731, abs=2)
    other = [gemm(8, device="A100", ns=9_000_000), gemm(9, device="", ns=10**9)]
    assert slow_gpus([*eight, *other]) == []
    assert slow_gpus([gemm(0), gemm(1, ns=10**8)]) == []  # which of two?


def test_a_gpu_with_another_result_stands_out() -> None:
    eight = [gemm(rank) for rank in range(8)]
    assert odd_sums(eight) == []
    assert [one.rank for one in odd_sums([gemm(0, sum="7.25"), *eight[1:]])] == [0]
    assert odd_sums([gemm(0, sum="1"), gemm(1, sum="2")]) == []
    assert odd_sums([gemm(rank, device="", sum=str(rank)) for rank in range(8)]) == []


def test_figures_are_for_whole_machines_of_a_known_model() -> None:
    eight = [gemm(rank) for rank in range(8)]
    assert expected_busbw(eight) == (460.0, "the least that Azure's health checks take")
    assert expected_busbw(eight[:4]) is None
    assert expected_busbw([gemm(rank) for rank in range(16)]) is None
    assert expected_busbw([gemm(rank, device="") for rank in range(8)]) is None


@pytest.mark.parametrize(
    "device",
    ["NVIDIA H100 PCIe", "NVIDIA H100 NVL", "NVIDIA H200 NVL", "NVIDIA A100-PCIE-40GB", "NVIDIA A100 80GB PCIe"],
)
def test_machines_without_nvswitch_have_no_figure(device: str) -> None:
    assert expected_busbw([gemm(rank, device=device) for rank in range(8)]) is None


@pytest.mark.parametrize(
    ("device", "busbw"), [("NVIDIA A100-SXM4-80GB", 228.0), ("NVIDIA H100 80GB HBM3", 460.0), ("NVIDIA H200", 431.0)]
)
def test_machines_with_nvswitch_have_one(device: str, busbw: float) -> None:
    found = expected_busbw([gemm(rank, device=device) for rank in range(8)])
    assert found
    assert found[0] == busbw
