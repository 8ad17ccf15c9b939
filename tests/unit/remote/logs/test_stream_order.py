"""stdout and stderr of a worker in the order in which they were written: by marks, by times, and whatever marks say."""

from __future__ import annotations

import contextlib
import os
import tempfile
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from clusterddp.remote.logs import line_times, order_marks
from clusterddp.remote.logs.order_marks import ERR, OUT, OrderMarks
from clusterddp.remote.shared.logs.log_frames import MAX_PIECES
from clusterddp.remote.shared.wire.frames import MAX_BODY, MAX_FRAME, Frame, encode
from tests.unit.spool_writer import Tail, Writer, caught_up, read

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

MARKS = "0.0.order.idx"
STREAMS = st.sampled_from(["out", "err"])
TEXTS = st.sampled_from([b"a", b"bc\n", b"\n", b"d\ne\nf", b"g\r\n"])


@contextlib.contextmanager
def fresh() -> Iterator[Writer]:
    """A spool for one example of a property."""
    with tempfile.TemporaryDirectory() as folder:
        writer = Writer(Path(folder))
        writer.start(0, 4)
        for name in ("0.0.out", "0.0.err"):  # the shim makes both before the worker writes
            (writer.logs / name).touch()
        yield writer


def lines_of(tail: Tail) -> list[tuple[str, bytes]]:
    """(stream, line) as they came whole; unfinished ones are last."""
    carry = {"out": b"", "err": b""}
    found = []
    for frame in tail.data:
        stream = frame.header["stream"]
        for piece in (carry[stream] + frame.body).splitlines(keepends=True):
            carry[stream] = b"" if piece.endswith(b"\n") else piece
            if not carry[stream]:
                found.append((stream, piece))
    return found + [(stream, carry[stream]) for stream in ("out", "err") if carry[stream]]


def lines_written(writes: Sequence[tuple[str, bytes]]) -> list[tuple[str, bytes]]:
    """The lines of a sequence of writes, as (stream, line); a line's place is where its last byte was written."""
    carry = {"out": b"", "err": b""}
    found = []
    for stream, data in writes:
        for piece in (carry[stream] + data).splitlines(keepends=True):
            carry[stream] = b"" if piece.endswith(b"\n") else piece
            if not carry[stream]:
                found.append((stream, piece))
    return found + [(stream, carry[stream]) for stream in ("out", "err") if carry[stream]]


def has_lines(count: int, tail: Tail, stream: str = "") -> bool:
    return len([line for of, line in lines_of(tail) if stream in ("", of) and line.endswith(b"\n")]) == count


def check_whole(tail: Tail, writer: Writer) -> None:
    """Assert that the frames hold every byte of both files exactly once and in order."""
    for name in ("0.0.out", "0.0.err"):
        path = writer.logs / name
        assert tail.text(name) == (path.read_bytes() if path.exists() else b"")
        at = 0
        for frame in tail.data:
            if frame.header["file"] == name:
                assert frame.header["offset"] == at
                at = frame.header["next"]


@settings(max_examples=150, deadline=None)
@given(writes=st.lists(st.tuples(STREAMS, TEXTS, st.booleans()), max_size=40))
def test_lines_come_in_the_order_in_which_they_were_written_however_their_times_are(
    writes: list[tuple[str, bytes, bool]],
) -> None:
    with fresh() as writer:
        for stream, data, noted in writes:
            writer.print(stream, data)
            if noted:
                writer.note(0.1)
        writer.note()
        writer.end()
        expected = lines_written([(stream, data) for stream, data, _ in writes])
        for timed in (False, True):
            found = read(writer, timed=timed)
            assert lines_of(found) == expected
            check_whole(found, writer)
        for stream in ("out", "err"):
            alone = [line for of, line in expected if of == stream]
            assert [line for _, line in lines_of(read(writer, stream=stream))] == alone
        kept = [line for line in expected if b"b" in line[1] or b"e" in line[1]]
        assert lines_of(read(writer, grep="b|e")) == kept


@settings(max_examples=60, deadline=None)
@given(
    writes=st.lists(st.tuples(STREAMS, st.sampled_from([b"a\n", b"bcd\n", b"e\r\n"])), max_size=30),
    count=st.integers(0, 8),
    seen=st.integers(0, 30),
)
def test_the_last_lines_and_what_follows_an_earlier_reading_are_in_order(
    writes: list[tuple[str, bytes]], count: int, seen: int
) -> None:
    with fresh() as writer:
        for stream, data in writes:
            writer.print(stream, data)
        writer.note()
        writer.end()
        assert lines_of(read(writer, tail=count)) == writes[max(0, len(writes) - count) :]
        offsets = {f"0.0.{name}": sum(len(data) for of, data in writes[:seen] if of == name) for name in ("out", "err")}
        assert lines_of(read(writer, offsets=offsets)) == writes[seen:]


@settings(max_examples=25, deadline=None)
@given(writes=st.lists(st.tuples(STREAMS, TEXTS, st.booleans()), min_size=1, max_size=25))
def test_a_follower_sees_the_order_that_a_later_reader_sees(writes: list[tuple[str, bytes, bool]]) -> None:
    with fresh() as writer, pytest.MonkeyPatch.context() as patched:
        patched.setattr(line_times, "HOLD_LIMIT", 60.0)  # on a busy machine half a second goes by between two calls
        tails = [Tail(writer, follow=True, timed=timed).begin().wait(caught_up) for timed in (False, True)]
        try:
            for stream, data, noted in writes:
                writer.print(stream, data)
                if noted:
                    writer.note(0.1)
        finally:
            writer.end()
        expected = lines_written([(stream, data) for stream, data, _ in writes])
        for tail in tails:
            assert lines_of(tail.finish()) == expected
            check_whole(tail, writer)


@settings(max_examples=150, deadline=None)
@given(
    writes=st.lists(st.tuples(STREAMS, TEXTS, st.booleans()), max_size=20),
    marks=st.one_of(
        st.binary(max_size=60),
        st.lists(st.tuples(st.integers(0, 60), st.integers(0, 60))).map(
            lambda pairs: b"".join(b"\n%d %d\n" % pair for pair in pairs)
        ),
        st.sampled_from([b"9" * 100 + b" 1\n", b"-1 5\n", b"1 2 3\n", b"5 5", b"\n1\x00 2\n", "٣ ٤\n".encode()]),
    ),
)
def test_whatever_the_marks_say_no_byte_is_lost_or_comes_twice_or_is_held_back(
    writes: list[tuple[str, bytes, bool]], marks: bytes
) -> None:
    with fresh() as writer:
        tail = Tail(writer, follow=True).begin().wait(caught_up)
        try:
            for place, (stream, data, noted) in enumerate(writes):
                writer.write("0.0." + stream, data)
                if place == len(writes) // 2:
                    writer.write(MARKS, marks)
                if noted:
                    writer.note(0.1)
        finally:
            writer.end()
        for found in (tail.finish(), read(writer), read(writer, timed=True), read(writer, tail=3)):
            assert {frame.header["stream"] for frame in found.data} <= {"out", "err"}
            if found.args.get("tail") is None:
                check_whole(found, writer)


def test_without_marks_the_time_counts_and_where_it_is_the_same_stdout_comes_first(writer: Writer) -> None:
    writer.write("0.0.err", b"one\n")
    writer.say("0.0.out", b"two\n")
    writer.say("0.0.err", b"three\n")
    writer.say("0.0.out", b"four\n")
    writer.end()
    lines = [("out", b"two\n"), ("err", b"one\n"), ("err", b"three\n"), ("out", b"four\n")]
    assert lines_of(read(writer)) == lines


def test_what_no_mark_parts_stays_between_the_marks_it_was_written_between(writer: Writer) -> None:
    """A library of C writes to stderr while Python writes to stdout."""
    writer.print("out", b"1\n")
    writer.print("err", b"2\n")
    writer.print("out", b"3\n")
    writer.write("0.0.err", b"4, by C\n")
    writer.print("err", b"5\n")
    writer.print("out", b"6\n")
    writer.note()
    writer.end()
    assert b"".join(line for _, line in lines_of(read(writer))) == b"1\n2\n3\n4, by C\n5\n6\n"


def test_a_live_line_waits_for_no_time_where_none_was_asked_for(writer: Writer) -> None:
    for name in ("0.0.out", "0.0.err"):
        writer.write(name, b"")  # as torchrun makes both before a worker begins
    tail = Tail(writer, follow=True).begin().wait(caught_up)
    for number in range(50):
        writer.print("out" if number % 2 else "err", b"%d\n" % number)
        if number % 10 == 9:  # nothing is ever noted
            tail.wait(partial(has_lines, number + 1))
    writer.end()
    assert [int(line) for _, line in lines_of(tail.finish())] == list(range(50))


def test_a_line_whose_time_never_comes_holds_the_other_stream_back_for_a_bounded_while(writer: Writer) -> None:
    """The time index of one file is not written."""
    tail = Tail(writer, follow=True, timed=True).begin().wait(caught_up)
    writer.print("out", b"one\n")
    writer.print("err", b"two\n")
    writer.write("0.0.err.idx", b"%d 4\n" % writer.clock)
    tail.wait(lambda t: t.text("0.0.err") == b"two\n")
    assert not tail.text()
    writer.note()
    writer.end()
    check_whole(tail.finish(), writer)


def test_a_redrawing_stream_holds_no_line_of_the_other_back(writer: Writer) -> None:
    tail = Tail(writer, follow=True).begin().wait(caught_up)
    for number in range(5):
        writer.print("err", b"\r%d%%" % number)
        writer.print("out", b"line %d\n" % number)
        tail.wait(partial(has_lines, number + 1, stream="out"))
    writer.print("err", b"\r100%\n")
    writer.note()
    writer.end()
    check_whole(tail.finish(), writer)
    check_whole(read(writer), writer)


def test_short_lines_share_frames_that_are_never_over_what_a_frame_holds(
    writer: Writer, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent: list[Frame] = []
    for number in range(3 * MAX_PIECES):
        writer.print("out" if number % 2 else "err", b"%d\n" % number)
    for stream in ("err", "out"):
        writer.print(stream, b"x" * (MAX_BODY - 10) + b"\n")
    writer.note()
    writer.end()
    tail = Tail(writer)
    monkeypatch.setattr(tail, "send_frame", sent.append)
    tail.begin().finish()
    data = [frame for frame in sent if frame.body]
    assert sum(len(frame.header.get("pieces", [0])) for frame in data) == 3 * MAX_PIECES + 2
    assert len(data) < 8
    for frame in data:
        assert len(encode({"id": 1 << 50, "kind": "data", **frame.header}, frame.body)) <= MAX_FRAME


class TestMarks:
    @pytest.fixture
    def stem(self, tmp_path: Path) -> str:
        for stream in ("out", "err"):
            (tmp_path / f"0.0.{stream}").write_bytes(b"x" * 1000)
        return str(tmp_path / "0.0")

    def marks(self, stem: str) -> OrderMarks:
        found = OrderMarks(stem)
        found.refresh()
        return found

    def pairs(self, marks: OrderMarks) -> list[tuple[int, int]]:
        return list(zip(*marks._sizes, strict=True))

    def test_one_that_goes_back_or_beyond_the_files_is_none(self, stem: str) -> None:
        Path(stem + ".order.idx").write_bytes(b"10 0\n\n10 5\n\n9 6\n\n11 4\n\n1001 7\n\n12 6\n\n12 6\n\n20 7")
        marks = self.marks(stem)
        assert self.pairs(marks) == [(10, 0), (10, 5), (12, 6)]
        with Path(stem + ".order.idx").open("ab") as file:
            file.write(b"0\n")  # the rest of the last
        marks.refresh()
        assert self.pairs(marks)[-1] == (20, 70)
        assert (marks.before(OUT, 10), marks.before(OUT, 11), marks.before(ERR, 1)) == (0, 2, 1)

    def test_a_torn_one_costs_no_other(self, stem: str) -> None:
        Path(stem + ".order.idx").write_bytes(b"\n10 0\n\n20\n30 2\n\n3\n40 3\n")
        assert self.pairs(self.marks(stem)) == [(10, 0), (30, 2), (40, 3)]

    def test_a_full_file_and_the_one_after_it_are_read_as_one(self, stem: str) -> None:
        path = Path(stem + ".order.idx")
        path.write_bytes(b"\n1 1\n\n2 2\n")
        early = self.marks(stem)
        with path.open("ab") as file:
            file.write(b"\n3 3\n")
        path.rename(stem + ".order.old.idx")
        path.write_bytes(b"\n4 4\n")
        early.refresh()
        assert self.pairs(early) == self.pairs(self.marks(stem)) == [(n, n) for n in (1, 2, 3, 4)]

    @pytest.mark.parametrize("kind", ["fifo", "link", "folder", "zeros"])
    def test_what_is_no_file_of_the_hook_is_not_read(self, stem: str, kind: str) -> None:
        path = Path(stem + ".order.idx")
        if kind == "fifo":
            os.mkfifo(path)
        elif kind == "folder":
            path.mkdir()
        elif kind == "link":
            Path(stem + ".true").write_bytes(b"1 1\n")
            path.symlink_to(stem + ".true")
        else:
            path.symlink_to("/dev/zero")
        assert self.pairs(self.marks(stem)) == []

    def test_of_a_huge_file_the_end_is_read(self, stem: str, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(order_marks, "MAX_READ", 100)
        path = Path(stem + ".order.idx")
        path.write_bytes(b"".join(b"\n%d %d\n" % (n, n) for n in range(1, 500)))
        marks = self.marks(stem)
        assert self.pairs(marks)[-1] == (499, 499)
        assert len(self.pairs(marks)) < 20

    def test_what_was_passed_is_forgotten(self, stem: str, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(order_marks, "MAX_PASSED_MARKS", 10)
        Path(stem + ".order.idx").write_bytes(b"".join(b"\n%d %d\n" % (n, n) for n in range(1, 500)))
        marks = self.marks(stem)
        marks.forget((400, 300))
        assert self.pairs(marks)[0] == (300, 300)
        assert (marks.size_at(OUT, marks.before(OUT, 410)), marks.latest(ERR)) == (410, 499)
