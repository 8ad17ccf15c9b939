"""The table of known messages: each row against what really is printed, and against the page that shows it."""

from __future__ import annotations

import re
import time
from pathlib import Path
from typing import Any

import pytest

from clusterddp.remote.shared.verdict.failures import last_error_line
from clusterddp.remote.spool.worker_traces import MAX_QUOTE
from clusterddp.runs.view.known_messages import MAX_SEARCHED, TABLE, find
from tests.unit.runs_told import Told, verdict

ROOT = Path(__file__).parents[4]
TEXTS = sorted((ROOT / "tests" / "data" / "known").glob("*.txt"))
PAGE = ROOT / "docs" / "known-messages.md"
NAMES = [row.name for row in TABLE]


def said(path: Path) -> str:
    """The text itself, without the head that tells where it is from."""
    lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
    return "".join(line for line in lines if not line.startswith("# "))


def wanted(path: Path) -> str:
    """The row a text is for: the longest name that the file's begins with."""
    return max((name for name in NAMES if f"{path.stem}-".startswith(f"{name}-")), key=len)


@pytest.mark.parametrize("path", TEXTS, ids=lambda path: path.stem)
def test_a_real_text_is_known(path: Path) -> None:
    row = find(last_error_line(said(path)), said(path))
    assert row
    assert row.name == wanted(path)


@pytest.mark.parametrize("name", NAMES)
def test_a_row_has_a_text_that_says_where_it_is_from(name: str) -> None:
    heads = [path.read_text(encoding="utf-8").splitlines()[0] for path in TEXTS if wanted(path) == name]
    assert heads
    for head in heads:
        assert re.match(r"# (provoked|what clusterddp says|documented in https|needs .*; documented in https)", head)


def test_more_rows_were_provoked_than_copied() -> None:
    provoked = {wanted(path) for path in TEXTS if "provoke" in path.read_text(encoding="utf-8").splitlines()[0]}
    assert len(provoked) > len(TABLE) / 2


def test_a_package_that_is_no_program_is_not_told_as_one_that_is_not_installed() -> None:
    text = "/usr/bin/python3: No module named m.__main__; 'm' is a package and cannot be directly executed"
    assert find(text, text) is None


def test_names_are_unique_and_sentences_fit_a_line() -> None:
    assert len(set(NAMES)) == len(NAMES)
    for row in TABLE:
        assert 0 < len(str(row)) < 240, row.name
        assert not row.remedy.endswith(".")
        assert "\n" not in str(row)


@pytest.mark.parametrize(
    "harmless", ["ValueError: loss is NaN", "KeyError: 'model'", "killed by SIGSEGV", "exit code 3", "AssertionError"]
)
def test_a_scripts_own_fault_is_no_known_message(harmless: str) -> None:
    assert find(harmless) is None


def test_the_first_text_that_says_anything_counts() -> None:
    row = find("ValueError: x", "OSError: [Errno 28] No space left on device")
    assert row
    assert row.name == "disk-full"
    row = find("torch.OutOfMemoryError: CUDA out of memory", "No space left on device")
    assert row
    assert row.name == "cuda-oom"


@pytest.mark.parametrize(
    "ended",
    [
        {"raised": "urllib.error.URLError: <urlopen error [Errno 111] Connection refused>"},
        {"code": 3, "stderr": "the proxy said: Connection reset by peer\nno data\n"},
    ],
)
def test_no_other_rank_went_away_where_the_failure_is_the_workers_own(ended: dict[str, Any]) -> None:
    found = verdict(Told().died(5, **ended).failed(6))
    assert (found.culprits, found.remedy) == (("gpu00",), "")


def test_an_own_failure_with_signs_of_a_lost_peer_has_the_remedy_of_another_message() -> None:
    said = "No space left on device\nConnection reset by peer\nleaving\n"
    assert verdict(Told().died(5, code=3, stderr=said).failed(6)).remedy.startswith("the disk is full")


def test_the_page_shows_the_table() -> None:
    shown = [f"| {row.name} | {row.cause} | {row.remedy} |".replace("\\", "") for row in TABLE]
    lines = PAGE.read_text(encoding="utf-8").splitlines()
    assert [line for line in lines if line.startswith("| ") and not line.startswith("| name ")] == shown


@pytest.mark.parametrize("before", [0, 60, 140, 199])
def test_a_message_is_known_wherever_it_stands_in_what_is_quoted_of_a_worker(before: int) -> None:
    frame, line = "  frame: at::native + 0x1 (libtorch_cpu)\n", "CUDA out of memory. Tried to allocate 2.00 GiB\n"
    lines = [frame] * (MAX_QUOTE // len(frame))
    lines[before : before + 1] = [line]
    told = Told().died(5, code=7, stderr="".join(lines) + "aborted\n").failed(6)
    assert verdict(told).remedy == str(find(line))


def test_a_long_line_is_searched_at_its_beginning_alone() -> None:
    """Whoever sends a log to be explained would else make it take hours."""
    row = find("RendezvousTimeoutError" + "x" * MAX_SEARCHED)
    assert row
    assert find("x" * MAX_SEARCHED + "RendezvousTimeoutError") is None
    assert find("NCCL " * 1_000_000) is None


@pytest.mark.parametrize("piece", ["1", "1/", "NCCL ", "Found no NVIDIA driver"[:-1], " "])
def test_no_text_takes_long_to_search(piece: str) -> None:
    began = time.process_time()
    find(piece * MAX_SEARCHED)
    assert time.process_time() - began < 0.6
