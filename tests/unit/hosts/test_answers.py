"""An answer is judged on its bytes; every text in what is made of it can be written."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clusterddp.hosts.answers import MAX_MEMORY, PATHS_LIMIT, Limit, memory_cost, parse_answer
from clusterddp.remote.shared.schema.json_text import to_json

ANY: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers(-(1 << 63), 1 << 63) | st.text(st.characters()),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(st.characters()), inner),
    max_leaves=30,
)


@given(value=ANY)
def test_whatever_is_read_can_be_written(value: Any) -> None:
    try:
        found = parse_answer(to_json(value).encode())
    except ValueError as error:  # two keys that differed by what cannot be written
        assert "twice" in str(error)  # noqa: PT017 - most values raise nothing
        return
    json.dumps(found, ensure_ascii=False).encode()


@pytest.mark.parametrize(
    ("text", "value"),
    [
        (rb'"\ud800"', "\ufffd"),
        (rb'"a\udfffb"', "a\ufffdb"),
        (rb'"\uD83D\uDE00\ud83d\ude00"', "\U0001f600\U0001f600"),
        (rb'"\\ud800"', "\\ud800"),
        (rb'{"\ud800": ["\udcff"]}', {"\ufffd": ["\ufffd"]}),
    ],
)
def test_half_of_a_pair_of_surrogates_is_replaced(text: bytes, value: Any) -> None:
    assert parse_answer(text) == value


def test_names_of_files_keep_their_bytes_and_nothing_else() -> None:
    assert parse_answer(rb'["a\udcff"]', PATHS_LIMIT) == ["a\udcff"]
    for other in (rb'["\ud800"]', rb'["a\udfff"]', rb'{"\udc7f": 1}'):
        with pytest.raises(ValueError, match="half of a character"):
            parse_answer(other, PATHS_LIMIT)


@pytest.mark.parametrize("text", ['"ü"'.encode(), b"\xff", b"", b"[", b"[1] 2", b"NaN", b"[" * 40 + b"]" * 40])
def test_what_no_helper_writes_is_refused(text: bytes) -> None:
    with pytest.raises(ValueError, match=r"."):
        parse_answer(text)


def test_what_would_take_too_much_is_refused_before_it_is_read() -> None:
    lists = b"[" + b"[]," * 400_000 + b"0]"
    with pytest.raises(ValueError, match=r"its answer would take \d+ MiB of memory; 64 MiB are its limit"):
        parse_answer(lists)
    assert len(parse_answer(lists, Limit(memory=memory_cost(lists)))) == 400_001


def test_large_clusters_and_folders_are_within_their_limits() -> None:
    """Two hundred thousand files; all pairs of 400 hosts, each with four addresses; 500 runs of 1,000 hosts."""
    digest = "5e" * 32
    names = [f"gpu{number:04d}" for number in range(1000)]
    files = [[f"out/run-17/checkpoints/{n:06d}/model.safetensors", "file", False, 1 << 30, digest] for n in range(2000)]
    dials = [{"address": "10.77.0.1", "port": 29500, "state": "open", "rtt_ms": 0.123456, "error": ""}] * 1600
    runs = [{"record": {"hosts": names}, "run": "abcdefghjk", "state": "succeeded"}] * 500
    assert memory_cost(to_json(files).encode()) * 100 < Limit.of_files(200_000).memory
    assert memory_cost(to_json(dials).encode()) < MAX_MEMORY
    assert memory_cost(to_json(runs).encode()) < MAX_MEMORY
