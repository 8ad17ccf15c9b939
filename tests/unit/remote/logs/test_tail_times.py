"""The operation ``tail``: every reader gives a line the same time, whenever it reads."""

from __future__ import annotations

import contextlib
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from clusterddp.remote.logs import line_times
from tests.unit.spool_writer import SECOND, Tail, Writer, caught_up, read, times

if TYPE_CHECKING:
    from collections.abc import Iterator

OUT, ERR = "0.0.out", "0.0.err"


def test_timed_live_and_replay_give_each_line_the_same_time(writer: Writer) -> None:
    tail = Tail(writer, follow=True, timed=True).begin().wait(caught_up)
    late = Tail(writer, follow=True, timed=True)
    for second in range(12):
        writer.write("0.0.out", b"%d half" % second)
        writer.note(0.3)
        writer.say("0.0.out", b" done\nwhole %d\n" % second)
        if second == 6:
            late.begin().wait(caught_up)
    writer.end()
    expected = times(read(writer, timed=True))
    assert times(tail.finish()) == times(late.finish()) == expected
    assert len(set(expected.values())) == 12


def test_a_line_that_the_index_does_not_cover_waits_for_its_time(writer: Writer) -> None:
    tail = Tail(writer, follow=True, timed=True).begin().wait(caught_up)
    writer.write("0.0.out", b"first\n")
    writer.write("0.0.err", b"x\n")
    noted = writer.note()
    tail.wait(lambda t: t.text("0.0.err") and t.text())
    writer.write("0.0.out", b"second\n")
    plain = Tail(writer, follow=True).begin().wait(lambda t: t.text().endswith(b"second\n"))
    assert times(tail) == {6: noted}
    later = writer.note()
    tail.wait(lambda t: t.text().endswith(b"second\n"))
    writer.end()
    assert times(tail.finish()) == {6: noted, 13: later}
    plain.finish()


def test_redraws_have_their_own_times_live_and_later(writer: Writer) -> None:
    tail = Tail(writer, follow=True).begin().wait(caught_up)
    for second in range(5):
        writer.say("0.0.out", b"\r%d%%" % second)
    writer.say("0.0.out", b"\r100%\r\nend\n")
    writer.end()
    assert tail.finish().text() == read(writer).text()
    expected = times(read(writer))
    assert len(set(expected.values())) == 6
    assert {end: times(tail)[end] for end in expected} == expected


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    pieces=st.lists(
        st.tuples(
            st.sampled_from(["0.0.out", "0.0.err", "0.1.out"]),
            st.lists(st.sampled_from([b"a", b"bc", b"\n", b"\r", b"\r\n", b"\xff\xfe", b"\x1b[31m"]), max_size=6),
            st.booleans(),
        ),
        max_size=25,
    )
)
def test_any_bytes_in_any_pieces_come_once_in_order_with_their_times(
    tmp_path_factory: pytest.TempPathFactory, pieces: list[tuple[str, list[bytes], bool]]
) -> None:
    writer = Writer(tmp_path_factory.mktemp("spool"))
    tails = [Tail(writer, follow=True, timed=timed).begin().wait(caught_up) for timed in (False, True)]
    wrote: dict[str, bytes] = {}
    for name, parts, noted in pieces:
        wrote[name] = wrote.get(name, b"") + b"".join(parts)
        writer.write(name, b"".join(parts))
        if noted:
            writer.note()
    writer.note()
    writer.end()
    replay = read(writer, timed=True)
    for name, data in wrote.items():
        assert [tail.finish().text(name) for tail in tails] == [data, data]
        assert replay.text(name) == data
        assert ends(tails[1], name) == ends(replay, name)
    for frame in [frame for tail in (*tails, replay) for frame in tail.data]:
        assert frame.header["next"] - frame.header["offset"] == len(frame.body)


def ends(tail: Tail, name: str) -> dict[int, int]:
    """The times of whole lines, by their ends."""
    found = times(tail, name)
    data = tail.text(name)
    return {end: time for end, time in found.items() if data[:end].endswith(b"\n")}


def note_size(writer: Writer, name: str, seconds: float) -> None:
    """Let the index say that a file has had its size since so many seconds."""
    writer.write(name + ".idx", b"%d %d\n" % (writer.clock + int(seconds * SECOND), writer.size(name)))


def shown(tail: Tail, writer: Writer) -> list[tuple[float, bytes]]:
    """(seconds, line) in the order in which they came."""
    return [
        ((frame.header["time"] - writer.clock) / SECOND, line)
        for frame in tail.data
        for line in frame.body.splitlines(keepends=True)
    ]


def err_before_out_by_marks_and_after_it_by_the_index(writer: Writer) -> None:
    """stderr grew again before the supervisor looked: all of it seems as young as its last line."""
    writer.print("err", b"first\n")
    writer.print("out", b"second\n")
    note_size(writer, OUT, 1)
    writer.print("err", b"third\n")
    note_size(writer, ERR, 5)
    writer.print("out", b"fourth\n")
    note_size(writer, OUT, 6)


def test_a_line_is_never_earlier_than_one_that_was_written_before_it_on_the_other_stream(writer: Writer) -> None:
    err_before_out_by_marks_and_after_it_by_the_index(writer)
    tail = Tail(writer, follow=True, timed=True).begin().wait(lambda t: b"fourth\n" in t.text())
    writer.end()
    expected = [(5, b"first\n"), (5, b"second\n"), (5, b"third\n"), (6, b"fourth\n")]
    assert shown(tail.finish(), writer) == expected
    assert shown(read(writer, timed=True), writer) == expected
    assert shown(read(writer, timed=True, tail=3), writer) == expected[1:]
    assert shown(read(writer, timed=True, offsets={ERR: 6}), writer) == expected[1:]
    assert shown(read(writer, timed=True, stream="out"), writer) == [expected[1], expected[3]]
    assert shown(read(writer, timed=True, stream="err"), writer) == [expected[0], expected[2]]


@pytest.mark.parametrize("stream", ["both", "out", "err"])
def test_since_and_until_part_the_lines_where_their_times_do(writer: Writer, stream: str) -> None:
    err_before_out_by_marks_and_after_it_by_the_index(writer)
    writer.end()
    lines = shown(read(writer, timed=True, stream=stream), writer)
    for seconds in (0, 1, 3, 5, 6, 7):
        moment = writer.clock + seconds * SECOND
        since = shown(read(writer, since=moment, stream=stream), writer)
        assert since == [line for line in lines if line[0] >= seconds]
        assert shown(read(writer, until=moment, stream=stream), writer) == [
            line for line in lines if line[0] <= seconds
        ]


@contextlib.contextmanager
def contradictory(writes: list[tuple[str, bytes, int]]) -> Iterator[Writer]:
    """A spool whose index has what was written at any of the times after it."""
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patched:
        patched.setattr(line_times, "HOLD_LIMIT", 60.0)
        writer = Writer(Path(folder))
        writer.start(0, 4)
        for name in (OUT, ERR):
            (writer.logs / name).touch()
        for place, (stream, data, look) in enumerate(writes):
            writer.print(stream, data)
            if look:
                note_size(writer, OUT if look == 1 else ERR, place)
        yield writer


WRITES = st.lists(
    st.tuples(
        st.sampled_from(["out", "err"]), st.sampled_from([b"a", b"b\n", b"c\nd\n", b"e\r", b"\r\n"]), st.integers(0, 2)
    ),
    max_size=25,
)


def line_ends(tail: Tail) -> dict[tuple[str, int], int]:
    """The times of what ended with a newline, by file and end, in the order in which they came."""
    return {
        (frame.header["file"], frame.header["offset"] + place + 1): frame.header["time"]
        for frame in tail.data
        for place, byte in enumerate(frame.body)
        if byte == 10
    }


@settings(max_examples=150, deadline=None)
@given(writes=WRITES, seen=st.integers(0, 25), moment=st.integers(0, 25), count=st.integers(0, 5))
def test_whatever_the_index_says_times_are_in_order_and_the_same_for_every_reader(
    writes: list[tuple[str, bytes, int]], seen: int, moment: int, count: int
) -> None:
    with contradictory(writes) as writer:
        tail = Tail(writer, follow=True, timed=True).begin().wait(caught_up)
        writer.end()
        expected = line_ends(read(writer, timed=True))
        assert line_ends(tail.finish()) == expected
        when = writer.clock + moment * SECOND
        begin = {name: sum(len(data) for of, data, _ in writes[:seen] if of == name[-3:]) for name in (OUT, ERR)}
        selections: list[dict[str, Any]] = [
            {"tail": count},
            {"offsets": begin},
            {"stream": "out"},
            {"stream": "err"},
            {"since": when},
            {"until": when},
        ]
        for selection in selections:
            found = line_ends(read(writer, timed=True, **selection))
            assert list(found.values()) == sorted(found.values()), selection
            assert found.items() <= expected.items(), selection
            if "since" in selection or "until" in selection:
                assert found == {
                    line: time
                    for line, time in expected.items()
                    if (time >= when if "since" in selection else time <= when)
                }
