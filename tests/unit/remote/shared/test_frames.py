"""Frames survive any splitting of the byte stream."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clusterddp.remote.shared.frames import MAX_BODY, MAX_FRAME, Decoder, Frame, ProtocolError, encode

frames = st.lists(st.tuples(st.dictionaries(st.text(max_size=9), st.integers()), st.binary(max_size=300)), max_size=8)


@given(frames=frames, cuts=st.lists(st.integers(1, 50), max_size=60))
def test_frames_come_out_whole_however_the_stream_is_cut(
    frames: list[tuple[dict[str, int], bytes]], cuts: list[int]
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
    assert list(Decoder().feed(encode({"id": 1}, body))) == [Frame({"id": 1}, body)]


def test_the_largest_body_fits_and_a_larger_frame_is_refused() -> None:
    assert len(encode({"id": 1}, b"x" * MAX_BODY)) <= MAX_FRAME + 4
    with pytest.raises(ProtocolError, match="over"):
        encode({"id": 1}, b"x" * MAX_FRAME)


@pytest.mark.parametrize("payload", [b"\xff\xff\xff\xff", b"\0\0\0\2[]", b"\0\0\0\2{\n"])
def test_bytes_that_are_no_frame_are_refused(payload: bytes) -> None:
    with pytest.raises(ProtocolError):
        list(Decoder().feed(payload))
