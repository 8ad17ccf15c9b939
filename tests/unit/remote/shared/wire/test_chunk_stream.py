"""Bundles of chunks: what was packed comes out, whatever the pieces; anything else is refused, in bounded memory."""

from __future__ import annotations

import json
import os
import zlib
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from clusterddp.remote.shared.wire.chunk_stream import MAX_CHUNKS, BadStream, Incoming, bundle, bundles_of, group_chunks
from clusterddp.remote.shared.wire.chunks import CHUNK, Chunk, chunks_of, content_of, digest_of, hash_file

if TYPE_CHECKING:
    from pathlib import Path


def incoming(data: bytes, step: int = 1 << 16) -> Incoming:
    pieces = iter([data[start : start + step] for start in range(0, len(data), step)])
    return Incoming(lambda: next(pieces, b""))


def packed(*chunks: bytes, compress: bool = True) -> bytes:
    return bundle([(digest_of(one), one) for one in chunks], compress=compress)


@settings(max_examples=50)
@given(st.lists(st.binary(max_size=2000), min_size=1, max_size=8), st.integers(1, 999))
def test_what_was_packed_comes_out(chunks: list[bytes], step: int) -> None:
    stream = incoming(packed(*chunks) + packed(b"last"), step)
    assert stream.bundle() == [(digest_of(one), one) for one in chunks]
    assert stream.bundle() == [(digest_of(b"last"), b"last")]
    assert stream.bundle() is None


def test_a_bundle_of_nothing_is_none() -> None:
    with pytest.raises(BadStream, match="carries nothing"):
        incoming(packed()).bundle()


@settings(max_examples=100)
@given(st.data())
def test_changed_bytes_are_refused_or_prove_the_same_chunks(data: st.DataObject) -> None:
    good = packed(b"a" * 1000, b"b" * 50)
    place = data.draw(st.integers(0, len(good) - 1))
    bad = good[:place] + bytes([data.draw(st.integers(0, 255))]) + good[place + 1 :]
    stream = incoming(bad)
    try:
        for digest, chunk in stream.bundle() or ():
            assert digest_of(chunk) == digest
    except BadStream:
        pass


def test_only_what_shrinks_is_compressed() -> None:
    assert len(packed(b"x" * 10_000)) < 500
    assert len(packed(b"x" * 10_000, compress=False)) > 10_000
    assert b'"plain"' in packed(os.urandom(10_000))


def test_a_bundle_that_inflates_to_more_than_it_says_is_refused() -> None:
    body = zlib.compress(bytes(100 << 20), 9)
    head = json.dumps(["zlib", len(body), [[digest_of(b"x"), 1]]]).encode()
    with pytest.raises(BadStream, match="not as long as it says"):
        incoming(head + b"\n" + body).bundle()


@pytest.mark.parametrize(
    "data",
    [
        b"x", b"[]\n", b"[" * 1000 + b"\n", b'["plain",-1,[]]\n', b'["plain",1.5,[]]\n', b'["lzma",0,[]]\n', b"{}\n",
        b'["plain",99999999999,[]]\n', b'["plain",4,[["d",5000000]]]\n', b'["plain",1,[[7,1]]]\nx',
        b'["zlib",1,[["d",1]]]\nx',
        b'["plain",5,[["d",5]]]\nabc', b'["plain",3,[["d",3]]]\nabc', b'["plain",true,[]]\n', b"[" * (1 << 20),
    ],
)  # fmt: skip
def test_what_is_no_bundle_is_refused(data: bytes) -> None:
    with pytest.raises(BadStream):
        incoming(data).bundle()


def test_a_content_has_exactly_the_bytes_that_were_announced() -> None:
    data = os.urandom(CHUNK + 10)
    sent = b"".join(bundles_of(data, compress=True))
    assert incoming(sent).content(len(data)) == data
    for size in (len(data) - 1, len(data) + 1):
        with pytest.raises(BadStream):
            incoming(sent).content(size)


def test_bundles_hold_a_bounded_number_of_bytes_and_chunks() -> None:
    chunks = [Chunk(str(number), 1) for number in range(MAX_CHUNKS + 1)] + [Chunk("x", CHUNK), Chunk("y", CHUNK)]
    groups = list(group_chunks(chunks))
    assert [chunk for group in groups for chunk in group] == chunks
    assert all(len(group) <= MAX_CHUNKS and sum(one.size for one in group) <= CHUNK for group in groups)


@pytest.mark.parametrize("size", [0, 1, CHUNK - 1, CHUNK, CHUNK + 1, 2 * CHUNK])
def test_a_file_is_named_by_its_chunks(tmp_path: Path, size: int) -> None:
    data = os.urandom(size)
    (tmp_path / "x").write_bytes(data)
    assert hash_file(bytes(tmp_path / "x")) == (
        size,
        [digest_of(data[at : at + CHUNK]) for at in range(0, size or 1, CHUNK)],
    )
    digests = hash_file(bytes(tmp_path / "x"))[1]
    chunks = chunks_of(content_of(digests), size, digests)
    assert (sum(chunk.size for chunk in chunks), [chunk.digest for chunk in chunks]) == (size, digests)


@pytest.mark.parametrize("digests", [None, [], ["a"], [7], ["0" * 64], ["0" * 64] * 2, "0" * 64])
def test_a_list_that_is_not_the_contents_is_refused(digests: object) -> None:
    content = content_of(["1" * 64, "2" * 64])
    with pytest.raises(ValueError, match="chunks"):
        chunks_of(content, CHUNK + 1, digests)
    with pytest.raises(ValueError, match="chunks"):
        chunks_of("../x", CHUNK + 1, ["1" * 64, "2" * 64])
