"""The operation ``tail``: every reader gives a line the same time, whenever it reads."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.unit.spool_writer import Tail, Writer, caught_up, read, times

if TYPE_CHECKING:
    import pytest


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
