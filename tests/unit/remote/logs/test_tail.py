"""The operation ``tail``: what is there, what comes, and filters."""

from __future__ import annotations

import os
import threading
from typing import TYPE_CHECKING, Any, cast

import pytest

from clusterddp.logs.checked_frames import CaughtUp
from clusterddp.remote.logs.output_files import LogFiles
from clusterddp.remote.logs.tail import tail
from clusterddp.remote.shared.wire.frames import MAX_BODY, encode
from clusterddp.remote.system.bootstrap import Refused
from tests.unit.plan_made import plan_text
from tests.unit.spool_writer import SECOND, Tail, Writer, caught_up, read, times

if TYPE_CHECKING:
    from clusterddp.remote.helper.request import Request


def test_a_plain_read_gives_every_byte_with_its_place_and_rank(writer: Writer) -> None:
    writer.say("0.0.out", b"one\ntwo\n")
    writer.say("0.0.out", b"no newline at the end")
    writer.end(7)
    found = read(writer)
    assert found.text() == b"one\ntwo\nno newline at the end"
    assert found.frames[0].header == {"hello": True, "run": "run1", "attempt": 0, "clock_error_ns": 2_000_000}
    first, last = found.data[0].header, found.data[-1].header
    assert (first["rank"], first["local_rank"], first["start"], first["stream"]) == (4, 0, 0, "out")
    assert last["open"]
    assert "open" not in first
    assert (found.result["ended"]["state"], found.result["ended"]["exit_code"]) == ("succeeded", 7)
    assert last["next"] == 29


def test_an_unfinished_line_of_a_live_run_stays_back(writer: Writer) -> None:
    writer.say("0.0.out", b"one\nhal")
    keep_alive(writer)
    assert read(writer).text() == b"one\n"
    assert read(writer, partials=True).text() == b"one\nhal"


@pytest.mark.parametrize("timed", [False, True])
def test_an_unfinished_line_stays_back_however_long_and_the_redraws_before_it_do_not(
    writer: Writer, *, timed: bool
) -> None:
    begun = b"one\n 10%\r 20%\r"
    writer.say("0.0.out", begun + b"x" * 200_000)
    keep_alive(writer)
    found = read(writer, timed=timed)
    assert found.text() == begun
    assert found.data[-1].header["next"] == len(begun)
    writer.say("0.0.out", b"y\n")
    assert read(writer, timed=timed, offsets={"0.0.out": len(begun)}).text() == b"x" * 200_000 + b"y\n"


def test_logs_that_are_removed_while_they_are_read_are_gone(writer: Writer, monkeypatch: pytest.MonkeyPatch) -> None:
    writer.say("0.0.out", b"one\n")
    wanted = LogFiles.wanted

    def removed(files: LogFiles) -> object:
        found = wanted(files)
        for path in (writer.folder / "logs").iterdir():
            path.unlink()
        return found

    monkeypatch.setattr(LogFiles, "wanted", removed)
    with pytest.raises(Refused, match="the run's logs are gone: no /"):
        tail(cast("Request", Tail(writer)))


def keep_alive(writer: Writer) -> None:
    """No supervisor yet: a run that starts."""
    assert not (writer.folder / "supervisor.json").exists()


def test_the_past_is_ordered_by_time_over_files(writer: Writer) -> None:
    writer.start(1, 5)
    for second in range(6):
        writer.say(f"0.{second % 2}.{'out' if second % 3 else 'err'}", b"%d\n" % second)
    writer.end()
    assert b"".join(frame.body for frame in read(writer).data) == b"0\n1\n2\n3\n4\n5\n"


def test_a_follow_shows_what_comes_new_files_and_the_end(writer: Writer) -> None:
    writer.say("0.0.out", b"past\n")
    tail = Tail(writer, follow=True).begin().wait(caught_up)
    writer.write("0.0.out", b"new\n")
    tail.wait(lambda t: t.text() == b"past\nnew\n")
    writer.start(0, 9, start=1)
    writer.write("1.0.err", b"restarted\n")
    tail.wait(lambda t: t.text("1.0.err") == b"restarted\n")
    assert tail.data[-1].header["rank"] == 9
    writer.write("0.0.out", b"last words")
    writer.end()
    tail.finish()
    assert tail.text() == b"past\nnew\nlast words"
    assert tail.result["ended"]["state"] == "succeeded"


def test_a_follow_tells_of_a_start_of_the_workers_that_prints_nothing(writer: Writer) -> None:
    tail = Tail(writer, follow=True, ranks=[7]).begin().wait(caught_up)
    writer.write("1.0.out", b"")
    tail.wait(lambda t: [frame.header["began"] for frame in t.frames if "began" in frame.header] == [1])
    writer.write("1.1.out", b"")
    writer.write("2.0.out", b"")
    tail.wait(lambda t: [frame.header["began"] for frame in t.frames if "began" in frame.header] == [1, 2])
    writer.end()
    assert tail.finish().data == []


def test_a_follow_tells_when_workers_end_how_many_have(writer: Writer) -> None:
    tail = Tail(writer, follow=True).begin().wait(caught_up)
    for count in (1, 2):
        writer.exit(count - 1, 4)
        tail.wait(lambda t: exits(t) == [*range(1, count + 1)])  # noqa: B023 - waited for at once
    writer.end()
    assert exits(tail.finish()) == [1, 2]


def exits(tail: Tail) -> list[int]:
    return [frame.header["exited"] for frame in tail.frames if "exited" in frame.header]


def test_a_follow_of_a_run_whose_supervisor_is_gone_ends_without_a_record(writer: Writer) -> None:
    writer.write("0.0.out", b"alone\n")
    (writer.folder / "supervisor.json").write_text("{}")
    tail = read(writer, follow=True)
    assert tail.text() == b"alone\n"
    assert tail.result["ended"] is None


def test_a_resting_partial_line_comes_only_where_it_is_wanted(writer: Writer) -> None:
    tails = [Tail(writer, follow=True, partials=wanted).begin().wait(caught_up) for wanted in (True, False)]
    writer.write("0.0.out", b"epoch 1 ...")
    tails[0].wait(lambda t: t.text() == b"epoch 1 ...")
    assert tails[0].data[0].header["open"]
    assert tails[1].data == []
    writer.write("0.0.out", b" done\n")
    writer.end()
    assert [tail.finish().text() for tail in tails] == [b"epoch 1 ... done\n"] * 2
    assert len(tails[1].data) == 1


def test_a_line_of_five_megabytes_comes_in_frames_that_fit(writer: Writer) -> None:
    long = os.urandom(5 << 20).replace(b"\n", b"-").replace(b"\r", b"-") + b"\n"
    tail = Tail(writer, follow=True).begin().wait(caught_up)
    writer.say("0.0.out", long + b"after\n")
    tail.wait(lambda t: len(t.text()) == len(long) + 6)
    writer.end()
    assert tail.finish().text() == read(writer).text() == long + b"after\n"
    assert max(len(frame.body) for frame in tail.data) <= MAX_BODY


def test_reading_goes_on_where_another_reader_stopped(writer: Writer) -> None:
    writer.say("0.0.out", b"one\ntwo\n")
    writer.end()
    assert read(writer, offsets={"0.0.out": 4}).text() == b"two\n"


@pytest.mark.parametrize(
    ("args", "expected"),
    [
        ({"stream": "err"}, b"e0\ne1\n"),
        ({"stream": "out"}, b"o0\no1\n"),
        ({"ranks": [5]}, b"o1\ne1\n"),
        ({"local_ranks": [0], "stream": "out"}, b"o0\n"),
        ({"agent": True, "ranks": []}, b"agent\n"),
        ({"grep": "^[oe]1$"}, b"o1\ne1\n"),
    ],
)
def test_filters_choose_lines_on_the_host(writer: Writer, args: dict[str, Any], expected: bytes) -> None:
    writer.start(1, 5)
    for name in ("0.0.out", "0.0.err", "0.1.out", "0.1.err"):
        writer.say(name, f"{name[4]}{name[2]}\n".encode())
    writer.say("agent.out", b"agent\n")
    writer.end()
    assert b"".join(frame.body for frame in read(writer, **args).data) == expected


@pytest.mark.parametrize(
    ("pattern", "expected"),
    [
        ("^L.chen$", "Löchen\n"),  # a letter is one character, however many bytes it has
        ("[äö]ch", "Löchen\nlächeln\n"),
        ("(?i)ÄCH", "lächeln\n"),
        (r"^\w+$", "Löchen\nlächeln\n"),
        ("^loss .$", "loss \ufffd\n"),  # a byte that is no UTF-8 is shown as one character
    ],
)
def test_grep_matches_lines_as_they_are_shown(writer: Writer, pattern: str, expected: str) -> None:
    writer.say("0.0.out", "Löchen\nlächeln\n".encode() + b"loss \xff\n")
    writer.end()
    assert read(writer, grep=pattern).text().decode("utf-8", "replace") == expected


def test_a_wrong_expression_is_refused_in_one_line(writer: Writer) -> None:
    with pytest.raises(Refused, match="unterminated"):
        Tail(writer, grep="[")._run()


def test_a_line_that_a_pty_ended_once_more_passes_with_its_end(writer: Writer) -> None:
    writer.say("0.0.out", b"loss 1\r\r\nother\r\r\nloss 2\r")
    writer.say("0.0.out", b"\r\nother\r\n\r\n")
    writer.end()
    for timed in (False, True):
        assert read(writer, grep="loss", timed=timed).text() == b"loss 1\r\r\nloss 2\r\r\n"


def test_a_line_that_a_pty_ended_once_more_is_left_out_with_its_end(writer: Writer) -> None:
    writer.say("0.0.out", b"DEBUG 1\r\r\nstep 1\r\r\n\r\nDEBUG 2\r")
    writer.say("0.0.out", b"\r\n\r\r\n")
    writer.end()
    for timed in (False, True):
        assert read(writer, grep="^(?!DEBUG)", timed=timed).text() == b"step 1\r\r\n\r\n\r\r\n"


def test_grep_sees_a_long_line_as_one(writer: Writer) -> None:
    writer.say("0.0.out", b"x" * 100_000 + b"needle\n" + b"y" * 100_000 + b"\n")
    writer.end()
    found = read(writer, grep="x.*needle")
    assert found.text() == b"x" * 100_000 + b"needle\n"
    assert [frame.header["offset"] for frame in found.data] == [0, MAX_BODY]


def test_since_and_until_go_by_the_index(writer: Writer) -> None:
    noted = [writer.say("0.0.out", b"%d\n" % second) for second in range(6)]
    writer.end()
    assert read(writer, since=noted[2], until=noted[4]).text() == b"2\n3\n4\n"
    assert read(writer, since=noted[2] - SECOND // 2).text() == b"2\n3\n4\n5\n"
    assert read(writer, until=noted[0] - 1).text() == b""
    assert read(writer, since=noted[5] + 1).text() == b""


def test_times_are_the_operators(writer: Writer) -> None:
    (writer.folder / "plan.json").write_text(plan_text(clock_offset_ns=5 * SECOND))
    noted = writer.say("0.0.out", b"x\n")
    writer.end()
    assert times(read(writer, timed=True)) == {2: noted - 5 * SECOND}
    assert read(writer, since=noted - 5 * SECOND).text() == b"x\n"
    assert read(writer, since=noted - 5 * SECOND + 1).text() == b""


@pytest.mark.parametrize(("count", "expected"), [(0, b""), (1, b"e5\n"), (3, b"o3\no4\ne5\n"), (99, None)])
def test_tail_leaves_the_last_lines_of_each_worker(writer: Writer, count: int, expected: bytes | None) -> None:
    lines = [(b"e" if second % 5 == 0 else b"o") + b"%d\n" % second for second in range(6)]
    for line in lines:
        writer.say("0.0.err" if line.startswith(b"e") else "0.0.out", line)
    writer.end()
    found = b"".join(frame.body for frame in read(writer, tail=count).data)
    assert found == (b"".join(lines) if expected is None else expected)


def test_tail_counts_lines_that_match(writer: Writer) -> None:
    writer.say("0.0.out", b"".join(b"line %d\n" % n for n in range(100_000)))
    writer.end()
    assert read(writer, tail=2, grep="7$").text() == b"line 99987\nline 99997\n"


@pytest.mark.parametrize(
    ("grep", "count", "found"),
    [
        ("^loss", 5, b"loss 1\r\nloss 2\n"),  # as without a count
        ("^loss", 1, b"loss 2\n"),
        ("%", 1, b" 90%\r"),
        ("%", 2, b" 20%\r 80%\r 90%\r"),
        ("^$", 1, b"\n"),
        (None, 1, b"loss 2\n"),
        (None, 3, b"loss 1\r\n\n 80%\r 90%\rloss 2\n"),
    ],
)
def test_the_last_lines_that_match_are_counted_behind_redraws_too(
    writer: Writer, grep: str | None, count: int, found: bytes
) -> None:
    writer.say("0.0.out", b"\r 10%\r 20%\r    \rloss 1\r\n\n 80%\r 90%\rloss 2\n")
    writer.end()
    assert read(writer, grep=grep, tail=count).text() == found


@pytest.mark.parametrize("timed", [False, True])
@pytest.mark.parametrize("follow", [False, True])
@pytest.mark.parametrize("count", [0, 1])
def test_of_a_progress_bar_behind_the_last_lines_only_its_last_redraw_is_sent(
    writer: Writer, count: int, *, follow: bool, timed: bool
) -> None:
    writer.say("0.0.out", b"1\n2\n")
    for percent in range(99):
        writer.say("0.0.err", b"\r %d%%" % percent)
    tail = Tail(writer, tail=count, follow=follow, timed=timed).begin().wait(lambda tail: tail.text("0.0.err"))
    assert (tail.text(), tail.text("0.0.err")) == (b"2\n" * count, b" 97%\r")
    writer.end()
    tail.finish()


def test_tail_then_follow_goes_on(writer: Writer) -> None:
    writer.say("0.0.out", b"1\n2\n3\n")
    tail = Tail(writer, follow=True, tail=1).begin().wait(caught_up)
    writer.write("0.0.out", b"4\n")
    writer.end()
    assert tail.finish().text() == b"3\n4\n"


def test_a_worker_that_was_started_again_hundreds_of_times_is_followed(writer: Writer) -> None:
    """Its files' offsets need several frames; if the connection breaks between two, earlier lines are sent again."""
    for start in range(1, 200):
        for local_rank in range(8):
            for stream in ("out", "err"):
                (writer.logs / f"{start}.{local_rank}.{stream}").touch()
    writer.say("0.0.out", b"1\n")
    tail = Tail(writer, follow=True).begin().wait(caught_up)
    writer.write("0.0.out", b"2\n")
    writer.end()
    tail.finish()
    told = [frame for frame in tail.check_frames() if isinstance(frame, CaughtUp)]
    assert [frame.whole for frame in told] == [False, False, False, True]
    assert sum(len(frame.offsets) for frame in told) == 199 * 16 + 1
    for frame in tail.frames:
        encode({"id": 1, "kind": "data", **frame.header}, frame.body)  # raises an error for one that is too long
    assert tail.text() == b"1\n2\n"
    assert tail.result.keys() == {"ended"}


def test_a_hole_at_the_head_is_told_and_reading_goes_on_at_a_line(writer: Writer) -> None:
    line = b"0123456789abcde\n"
    with (writer.logs / "0.0.out").open("wb") as file:
        file.seek(1 << 20)  # as if punched
        file.write(b"cut\n" + line)
    writer.note()
    writer.end()
    found = read(writer)
    assert found.text() == line
    (told,) = [frame for frame in found.frames if "dropped" in frame.header]
    assert (told.header["dropped"], told.header["offset"], told.body) == ((1 << 20) + 4, (1 << 20) + 4, b"")
    assert found.data[0].header["offset"] == (1 << 20) + 4


def test_zeros_a_worker_writes_are_its_own(writer: Writer) -> None:
    writer.say("0.0.out", b"\0\0\0zeros\n")
    writer.end()
    assert read(writer).text() == b"\0\0\0zeros\n"


def test_a_writer_at_full_speed_loses_nothing(writer: Writer) -> None:
    lines = [b"line %d of a writer that does not wait\n" % number for number in range(40_000)]
    tail = Tail(writer, follow=True).begin().wait(caught_up)

    def flood() -> None:
        for start in range(0, len(lines), 37):
            writer.write("0.0.out", b"".join(lines[start : start + 37]))
        writer.end()

    thread = threading.Thread(target=flood)
    thread.start()
    thread.join()
    assert tail.finish().text() == b"".join(lines)
