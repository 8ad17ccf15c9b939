"""What of a host's log frames is let in: those of the run asked for, every field as it must be."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clusterddp.errors import ClusterddpError, HelperError
from clusterddp.logs.checked_frames import CaughtUp, End, FilePart, Lines, LogHeader, RunStalled, WorkersExited
from clusterddp.logs.incoming import check_frames
from clusterddp.logs.merge import FrameArrived
from clusterddp.logs.render import JsonRenderer, TextRenderer
from clusterddp.logs.save import Saver
from clusterddp.remote.shared.wire.frames import Frame
from tests.unit.json_values import VALUES

if TYPE_CHECKING:
    from collections.abc import Generator, Iterable
    from pathlib import Path

    from clusterddp.logs.checked_frames import LogFrame

HELLO = {"kind": "data", "hello": True, "run": "abcdefghjk", "attempt": 1, "clock_error_ns": 5}
LINES = {
    "kind": "data", "file": "0.1.out", "start": 0, "local_rank": 1, "rank": 3, "stream": "out", "offset": 10,
    "next": 13, "time": 10**18,
}  # fmt: skip
EXITED = {"kind": "data", "exited": 2}
STALLED = {"kind": "data", "stalled": 1}
CAUGHT_UP = {"kind": "data", "caught_up": True, "offsets": {"0.1.out": 13, "agent.out": 0}}
END = json.dumps({"ended": None}).encode()


def let_in(*frames: Frame) -> list[LogFrame]:
    def told() -> Generator[Frame]:
        yield from frames

    return list(check_frames(told(), "gpu01", "abcdefghjk", 1))


def lines(body: bytes = b"ab\n", **more: Any) -> Frame:
    return Frame({**LINES, **more}, body)


def both(body: bytes = b"ab\nc\nd\n", **more: Any) -> Frame:
    """Lines of both streams: of 0.1.out 3 and 2 bytes from 10, of 0.1.err 2 from 4 in between."""
    value = {"next": 15, "pieces": [3, 2, 2], "second": {"offset": 4, "next": 6, "time": 10**18}, **more}
    return lines(body, **value)


def test_what_a_host_rightly_sends_is_let_in() -> None:
    agent: dict[str, Any] = {"file": "agent.out", "start": None, "local_rank": None, "rank": None, "stream": "out"}
    frames = [
        Frame(HELLO, b""), lines(), lines(b"", next=10, dropped=4), lines(open=True), lines(**agent),
        Frame(CAUGHT_UP, b""), Frame(EXITED, b""), Frame(STALLED, b""), Frame({"kind": "end"}, END),
    ]  # fmt: skip
    part = FilePart(file="0.1.out", start=0, local_rank=1, rank=3, stream="out", offset=10, next=13, time=10**18)
    none = FilePart(**{**part._asdict(), **agent})
    assert let_in(*frames) == [
        LogHeader(run="abcdefghjk", attempt=1, clock_error_ns=5),
        Lines(part=part, body=b"ab\n"),
        Lines(part=part._replace(next=10, dropped=4), body=b""),
        Lines(part=part, body=b"ab\n"),
        Lines(part=none, body=b"ab\n"),
        CaughtUp(offsets={"0.1.out": 13, "agent.out": 0}),
        WorkersExited(count=2),
        RunStalled(count=1),
        End(ended=None),
    ]


def test_lines_of_both_streams_are_saved_each_to_its_file_and_counted_as_read(tmp_path: Path) -> None:
    hello, frame = let_in(Frame(HELLO, b""), both())
    saver = Saver(tmp_path, "abcdefghjk")
    saver.save([FrameArrived(host="gpu01", frame=frame) for frame in (hello, frame)])
    out, err = ((tmp_path / "1.0" / f"rank3-gpu01-1.{name}").read_bytes() for name in ("out", "err"))
    assert (out, err) == (bytes(10) + b"ab\nd\n", bytes(4) + b"c\n")
    assert isinstance(frame, Lines)
    assert frame.offsets == {"0.1.out": 15, "0.1.err": 6}


@pytest.mark.parametrize(
    "frame",
    [
        Frame({**EXITED, "exited": -1}, b""),
        Frame({**EXITED, "exited": "2"}, b""),
        lines(stream="/../../.bashrc"),
        lines(file="../../.bashrc"),
        lines(file="/etc/passwd", start=None, local_rank=None),
        lines(file="0.1.out\n"),
        lines(file="0.1.err"),
        lines(file="0.2.out"),
        lines(file="agent.out"),
        lines(rank="../3"),
        lines(rank=-1),
        lines(rank=True),
        lines(start="0/.."),
        lines(local_rank=1.0),
        lines(offset=-1),
        lines(offset=1 << 53, next=(1 << 53) + 3),
        lines(offset=(1 << 43) + 1, next=(1 << 43) + 4),
        lines(next=12),
        lines(next="13"),
        lines(time=1 << 70),
        lines(time="now"),
        lines(dropped=11),
        lines(dropped="4"),
        lines(open="yes"),
        both(pieces=[3, 4]),
        both(pieces=[3, 2, 3]),
        both(pieces=[3, 2, -2, 4]),
        both(pieces=[3, 2, 0, 2]),
        both(pieces=[7]),
        both(pieces="322"),
        both(pieces=[3.0, 2, 2]),
        both(b"a" * 1000, pieces=[1] * 1000, next=510, second={"offset": 4, "next": 504}),
        both(next=17),
        both(second=None),
        both(second=[4, 6]),
        both(second={"offset": 4, "next": 5}),
        both(second={"offset": -2, "next": 0}),
        both(second={"offset": 4, "next": 6, "time": "now"}),
        both(file="agent.out", start=None, local_rank=None, rank=None),
        Frame({"kind": "data"}, b"x"),
        Frame({**CAUGHT_UP, "offsets": {"../x": 1}}, b""),
        Frame({**CAUGHT_UP, "offsets": [1]}, b""),
        Frame({"kind": "end"}, b"[]"),
        Frame({"kind": "end"}, b'{"ended": 5}'),
        Frame({"kind": "end"}, b"["),
    ],
    ids=lambda frame: repr(frame)[:90],
)
def test_a_frame_that_is_not_what_it_must_be_is_an_error_of_its_host(frame: Frame) -> None:
    with pytest.raises(HelperError, match="gpu01: its logs are damaged"):
        let_in(Frame(HELLO, b""), frame)


@pytest.mark.parametrize(
    "hello",
    [{"run": "another2run"}, {"run": "../../x"}, {"attempt": 2}, {"attempt": "1"}, {"clock_error_ns": None}],
)
def test_a_host_speaks_of_the_run_that_was_asked_for(hello: dict[str, Any]) -> None:
    with pytest.raises(HelperError, match="gpu01: its logs are damaged"):
        let_in(Frame({**HELLO, **hello}, b""))
    with pytest.raises(HelperError, match="gpu01: its logs are damaged"):
        let_in(lines())


def test_what_is_unknown_does_not_come_in() -> None:
    known = let_in(Frame(HELLO, b""), lines())
    assert let_in(Frame(HELLO, b""), lines(host="gpu02", hello=True, run="x")) == known


headers = st.dictionaries(st.sampled_from([*LINES, *HELLO, *CAUGHT_UP, "dropped", "open", "x"]), VALUES).map(
    lambda changed: {**LINES, **changed}
)


@given(frames=st.lists(st.builds(Frame, headers, st.sampled_from([b"", b"ab\n", b"\x1b[2Jx"]))))
def test_whatever_a_host_sends_is_drawn_and_saved_or_is_its_error(
    tmp_path_factory: pytest.TempPathFactory, frames: Iterable[Frame]
) -> None:
    folder = tmp_path_factory.mktemp("saved")
    try:
        found = let_in(Frame(HELLO, b""), *frames)
    except ClusterddpError:
        return
    Saver(folder, "abcdefghjk").save([FrameArrived(host="gpu01", frame=frame) for frame in found])
    for renderer in (TextRenderer(timestamps=True), JsonRenderer()):
        for frame in found:
            renderer.feed("gpu01", frame)


def test_a_link_in_the_saved_folder_leads_nowhere_else(tmp_path: Path) -> None:
    (tmp_path / "home").mkdir()
    saver = Saver(tmp_path / "saved", "abcdefghjk")
    (tmp_path / "saved" / "1.0").symlink_to(tmp_path / "home")
    events = [FrameArrived(host="gpu01", frame=frame) for frame in let_in(Frame(HELLO, b""), lines())]
    with pytest.raises(ClusterddpError, match="a link, or something else than a file or folder, has its name"):
        saver.save(events)
    assert not list((tmp_path / "home").iterdir())
