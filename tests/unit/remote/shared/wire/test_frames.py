"""Frames survive any splitting of the byte stream, and any bytes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clusterddp.remote.shared.wire.frames import (
    MAX_BODY,
    MAX_DEPTH,
    MAX_FRAME,
    Decoder,
    Frame,
    ProtocolError,
    encode,
    parse,
    parse_json,
)
from tests.unit.json_values import VALUES

numbers = st.integers(-(2**63), 2**63)
fields = st.dictionaries(st.text(max_size=9).filter(lambda name: name not in ("id", "kind")), numbers)
headers = fields.map(lambda found: {"kind": "data", **found})
frames = st.lists(st.tuples(headers, st.binary(max_size=300)), max_size=8)


@given(frames=frames, cuts=st.lists(st.integers(1, 50), max_size=60))
def test_frames_come_out_whole_however_the_stream_is_cut(
    frames: list[tuple[dict[str, object], bytes]], cuts: list[int]
) -> None:
    stream = b"".join(encode(header, body) for header, body in frames)
    decoder = Decoder()
    found: list[Frame] = []
    for cut in [*cuts, len(stream)]:
        piece, stream = stream[:cut], stream[cut:]
        found += decoder.feed(piece)
    found += decoder.feed(stream)
    assert [(frame.header, frame.body) for frame in found] == frames


def test_a_body_may_hold_newlines_and_zero_bytes() -> None:
    body = b"a\n\0{}\n"
    header = {"id": 1, "kind": "data"}
    assert list(Decoder().feed(encode(header, body))) == [Frame(header, body)]


def test_the_largest_body_fits_and_a_larger_frame_is_refused() -> None:
    assert len(encode({"id": 1}, b"x" * MAX_BODY)) <= MAX_FRAME + 4
    with pytest.raises(ProtocolError, match="over"):
        encode({"id": 1}, b"x" * MAX_FRAME)


def test_a_decoder_takes_no_frame_over_its_own_limit() -> None:
    frame = encode({"kind": "hello"}, b"x" * 500)
    with pytest.raises(ProtocolError, match="over 400"):
        list(Decoder(400).feed(frame[:4]))
    assert len(list(Decoder(600).feed(frame))) == 1


@pytest.mark.parametrize("payload", [b"\xff\xff\xff\xff", b"\0\0\0\2[]", b"\0\0\0\2{\n", b"\0\0\0\0"])
def test_bytes_that_are_no_frame_are_refused(payload: bytes) -> None:
    with pytest.raises(ProtocolError):
        list(Decoder().feed(payload))


@pytest.mark.parametrize(
    "header",
    [
        b"{}",
        b'{"kind":1}',
        b'{"kind":null}',
        b'{"kind":"data","kind":"end"}',
        b'{"kind":"data","id":"1"}',
        b'{"kind":"data","id":true}',
        b'{"kind":"data","id":1.0}',
        b'{"kind":"data","id":-1}',
        b'{"kind":"data","id":1e999}',
        b'{"kind":"data","id":9007199254740992}',
        b'{"kind":"data","n":Infinity}',
        b'{"kind":"data","n":-Infinity}',
        b'{"kind":"data","n":NaN}',
        b'{"kind":"data","n":1e999}',
        b'{"kind":"data","n":' + b"9" * 60_000 + b"}",
        b'{"kind":"data","n":{"a":1,"a":2}}',
        b"[" * 60_000,
        b'{"a":' * 10_000,
        b'{"kind":"data","n":' + b"[" * MAX_DEPTH + b"]" * MAX_DEPTH + b"}",
        b'{"kind":"data","n":"\xff"}',
        '{"kind":"data"}'.encode("utf-16"),
    ],
    ids=lambda header: repr(header[:40]),
)
def test_a_header_that_is_not_exactly_one_is_refused(header: bytes) -> None:
    with pytest.raises(ProtocolError):
        parse(header + b"\nbody")


def test_a_value_may_be_nested_as_deep_as_the_limit() -> None:
    deepest = b"[" * MAX_DEPTH + b"]" * MAX_DEPTH
    assert parse_json(b"[[],[]]") == [[], []]
    assert parse_json(deepest)
    with pytest.raises(ValueError, match="too deep"):
        parse_json(b"[" + deepest + b"]")


@given(data=st.lists(st.binary(max_size=40) | VALUES.map(lambda value: encode({"kind": "x", "v": value})), max_size=6))
def test_whatever_the_bytes_a_decoder_gives_frames_or_its_own_error(data: list[bytes]) -> None:
    decoder = Decoder()
    try:
        found = [frame for piece in data for frame in decoder.feed(piece)]
    except ProtocolError:
        return
    assert all(isinstance(frame.header["kind"], str) for frame in found)
