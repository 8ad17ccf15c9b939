"""Many streams as one: order of the past, arrival, breaks, silent hosts, bounded memory."""

from __future__ import annotations

import threading
import time
from types import SimpleNamespace
from typing import TYPE_CHECKING

import pytest

from clusterddp.errors import ClusterddpError, HelperError, UnreachableError
from clusterddp.logs import merge as merging
from clusterddp.logs.checked_frames import CaughtUp, End, FilePart, Lines
from clusterddp.logs.merge import Event, FrameArrived, Merge, StreamBroken, StreamEnded, backoff
from clusterddp.logs.renderers import lines
from clusterddp.logs.selection import Position, Selection
from tests.unit.spool_writer import Tail, Writer

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from clusterddp.logs.checked_frames import LogFrame


def line(text: str, offset: int, when: int | None = None, start: int = 0) -> Lines:
    part = FilePart(
        file=f"{start}.0.out",
        start=start,
        local_rank=0,
        rank=0,
        stream="out",
        offset=offset,
        next=offset + len(text),
        time=when,
    )
    return Lines(part=part, body=text.encode())


def end(code: int = 0) -> End:
    return End(ended={"exit_code": code})


CAUGHT_UP = CaughtUp(offsets={"0.0.out": 0})


def fixed(streams: dict[str, list[LogFrame]]) -> Callable[[str, Position], Iterator[LogFrame]]:
    return lambda host, _: iter(streams[host])


def texts(events: list[Event]) -> list[str]:
    return [event.body.decode() for event in events if isinstance(event, FrameArrived) and event.body]


def until(merge: Merge, wanted: Callable[[list[Event]], object]) -> list[Event]:
    events: list[Event] = []
    deadline = time.monotonic() + 20
    while not wanted(events):
        assert time.monotonic() < deadline, events
        events += merge.batch(0.1)
    return events


def test_the_past_of_all_hosts_comes_in_order_of_time() -> None:
    streams: dict[str, list[LogFrame]] = {
        "a": [*(line(f"a{when}", when, when) for when in range(0, 100, 2)), end(1)],
        "b": [*(line(f"b{when}", when, when) for when in range(1, 100, 2)), end(2)],
    }
    merge = Merge(streams, fixed(streams), follow=False)
    events = [event for batch in merge for event in batch]
    assert texts(events) == [f"{'ab'[when % 2]}{when}" for when in range(100)]
    assert merge.done
    assert merge.ended == {"a": {"exit_code": 1}, "b": {"exit_code": 2}}


def test_lines_of_several_hosts_are_in_order_of_time_where_workers_write_to_both_streams(tmp_path: Path) -> None:
    writers = {host: Writer(tmp_path / host) for host in ("a", "b")}
    for rank, writer in enumerate(writers.values()):
        writer.start(0, rank)
    for host, stream in (("a", "out"), ("b", "out"), ("a", "err"), ("b", "err"), ("a", "out"), ("b", "out")) * 3:
        writers[host].print(stream, b"line\n")
        for writer in writers.values():
            writer.note()
    for writer in writers.values():
        writer.end()

    def open_stream(host: str, _: Position) -> Iterator[LogFrame]:
        tail = Tail(writers[host], timed=True, as_sent=True).begin().finish()
        yield from tail.check_frames()
        yield end()

    with Merge(writers, open_stream, follow=False) as merge:
        times = [line.time or 0 for line in lines(merge)]
    assert len(times) == 18
    assert times == sorted(set(times))


def test_what_comes_is_shown_as_it_comes_whatever_another_host_does() -> None:
    silent = threading.Event()

    def open_stream(host: str, _: Position) -> Iterator[LogFrame]:
        yield CAUGHT_UP
        if host == "silent":
            silent.wait(20)
        for number in range(100):
            yield line("x", number)
        yield end()

    merge = Merge(["silent", "busy"], open_stream)
    until(merge, lambda events: len(texts(events)) == 100)
    assert "busy" in merge.ended or until(merge, lambda events: any(isinstance(e, StreamEnded) for e in events))
    silent.set()
    until(merge, lambda events: any(isinstance(event, StreamEnded) for event in events))
    assert merge.done


def test_newer_lines_wait_for_anothers_past_but_not_for_a_silent_host(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(merging, "SILENCE_TIMEOUT", 60)
    go, never = threading.Event(), threading.Event()

    def open_stream(host: str, _: Position) -> Iterator[LogFrame]:
        if host == "slow":
            go.wait(20)
            yield line("old", 0, 5)
            yield CAUGHT_UP
        elif host == "silent":
            never.wait(20)
        else:
            yield CAUGHT_UP
            yield line("new", 0)
        yield end()

    merge = Merge(["quick", "slow"], open_stream)
    go.set()
    assert texts([event for batch in merge for event in batch]) == ["old", "new"]
    monkeypatch.setattr(merging, "SILENCE_TIMEOUT", 0.1)
    with Merge(["quick", "silent"], open_stream) as other:
        assert texts(until(other, texts)) == ["new"]
    never.set()


def test_a_host_that_only_trickles_its_past_does_not_hide_the_lines_of_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(merging, "SILENCE_TIMEOUT", 0.1)
    stop = threading.Event()

    def open_stream(host: str, _: Position) -> Iterator[LogFrame]:
        if host == "quick":
            yield CAUGHT_UP
            yield line("new", 0)
        for number in range(10**9) if host == "trickling" else ():
            if stop.wait(0.03):
                break
            yield line("x", number, number)
        yield end()

    with Merge(["quick", "trickling"], open_stream) as merge:
        until(merge, lambda events: "new" in texts(events))
        stop.set()


def test_newer_lines_wait_as_long_as_another_host_sends_its_past_at_a_rate(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, shown = [0.0], threading.Semaphore()
    monkeypatch.setattr(merging, "time", SimpleNamespace(monotonic=lambda: clock[0], time=time.time))
    old = [str(number) * merging.PAST_RATE for number in range(10)]

    def open_stream(host: str, _: Position) -> Iterator[LogFrame]:
        for number, text in enumerate(old if host == "slow" else ()):
            shown.acquire()
            clock[0] += 1.0
            yield line(text, number, number)
        yield CAUGHT_UP
        if host == "quick":
            yield line("new", 0)
        yield end()

    seen = []
    for events in Merge(["quick", "slow"], open_stream):
        for text in texts(events):
            seen.append(text)
            shown.release()
    assert seen == [*old, "new"]


def test_a_broken_stream_goes_on_where_it_ended_and_nothing_comes_twice() -> None:
    whole = [line(str(number), number) for number in range(10)]
    opened: list[Position] = []

    def open_stream(_: str, position: Position) -> Iterator[LogFrame]:
        opened.append(position)
        yield CaughtUp(offsets=dict(position.offsets))
        start = position.offsets.get("0.0.out", 0)
        yield from whole[start : start + 4]
        if start + 4 < len(whole):
            raise UnreachableError("h", "cut")
        yield end()

    merge = Merge(["h"], open_stream, retry=lambda attempt, _: 0.001 * attempt)
    events = [event for batch in merge for event in batch]
    assert texts(events) == [str(number) for number in range(10)]
    assert [position.offsets.get("0.0.out", 0) for position in opened] == [0, 4, 8]
    assert [position.caught_up for position in opened] == [False, True, True]
    assert sum(isinstance(event, StreamBroken) for event in events) == 2


def test_a_host_whose_stream_broke_before_all_its_offsets_had_come_has_not_caught_up() -> None:
    opened: list[Position] = []

    def open_stream(_: str, position: Position) -> Iterator[LogFrame]:
        opened.append(position)
        yield CaughtUp(offsets={"0.0.out": 7}, whole=False)
        if not position.offsets:
            raise UnreachableError("h", "cut")
        yield CaughtUp(offsets={"0.1.out": 5})
        if not position.caught_up:
            raise UnreachableError("h", "cut")
        yield end()

    list(Merge(["h"], open_stream, retry=lambda *_: 0.001))
    assert [(position.offsets, position.caught_up) for position in opened] == [
        ({}, False),
        ({"0.0.out": 7}, False),
        ({"0.0.out": 7, "0.1.out": 5}, True),
    ]


def test_a_host_given_up_ends_and_the_error_is_told() -> None:
    def open_stream(host: str, _: Position) -> Iterator[LogFrame]:
        if host == "bad":
            raise HelperError("bad", "the run's logs are gone")
        yield line("good", 0)
        yield end()

    merge = Merge(["bad", "good"], open_stream)
    events = [event for batch in merge for event in batch]
    (broken,) = [event for event in events if isinstance(event, StreamBroken)]
    assert broken.retry is None
    assert texts(events) == ["good"]
    with pytest.raises(HelperError):
        list(lines(Merge(["bad", "good"], open_stream)))


def test_a_break_is_told_once_however_often_it_is_tried_to_mend_it() -> None:
    tries: list[int] = []

    def open_stream(_: str, __: Position) -> Iterator[LogFrame]:
        tries.append(1)
        if len(tries) < 5:
            raise UnreachableError("h", "no answer")
        yield line("x", 0)
        yield end()

    merge = Merge(["h"], open_stream, retry=lambda *_: 0.001)
    events = [event for batch in merge for event in batch]
    assert texts(events) == ["x"]
    assert sum(isinstance(event, StreamBroken) for event in events) == 1


def test_a_stream_without_an_end_is_a_break() -> None:
    merge = Merge(["h"], fixed({"h": [line("x", 0)]}), retry=lambda *_: None)
    assert isinstance([event for batch in merge for event in batch][-1], StreamBroken)


def test_a_bug_in_opening_is_raised_where_the_lines_are_shown() -> None:
    def open_stream(_: str, __: Position) -> Iterator[LogFrame]:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        Merge(["h"], open_stream).batch(20)


def test_offsets_move_when_a_batch_was_shown() -> None:
    merge = Merge(["h"], fixed({"h": [CAUGHT_UP, line("abc", 0), end()]}))
    until(merge, texts)
    assert merge.offsets["h"].get("0.0.out", 0) == 0
    until(merge, lambda _: merge.done)
    merge.batch(0)
    assert merge.offsets == {"h": {"0.0.out": 3}}


def test_a_host_that_joins_is_read_from_its_beginning_and_waited_for() -> None:
    merge = Merge(["h"], fixed({"h": [CAUGHT_UP, line("a", 0), end()], "new": [line("b", 0), CAUGHT_UP, end()]}))
    until(merge, lambda _: merge.done)
    merge.add("new")
    assert not merge.done
    assert texts([event for batch in merge for event in batch]) == ["b"]
    assert merge.ended.keys() == {"h", "new"}


def test_a_paused_reader_makes_hosts_wait_instead_of_filling_memory() -> None:
    made, full = [], threading.Event()

    def open_stream(_: str, __: Position) -> Iterator[LogFrame]:
        yield CAUGHT_UP
        for number in range(1000):
            made.append(number)
            if len(made) >= merging.QUEUE_SIZE:
                full.set()
            yield line("x", number)
        yield end()

    merge = Merge(["h"], open_stream)
    assert full.wait(20)
    assert len(made) <= merging.QUEUE_SIZE + 1
    assert len(texts([event for batch in merge for event in batch])) == 1000


def test_an_empty_batch_after_the_timeout_and_nothing_after_the_close() -> None:
    hold = threading.Event()

    def open_stream(_: str, __: Position) -> Iterator[LogFrame]:
        hold.wait(20)
        yield end()

    merge = Merge(["h"], open_stream)
    assert merge.batch(0.01) == []
    assert not merge.done
    merge.close()
    assert merge.batch() == []
    assert merge.done
    hold.set()


def test_lost_connections_are_tried_again_ever_more_slowly_and_failures_never() -> None:
    lost: ClusterddpError = UnreachableError("h", "cut")
    delays = [backoff(attempt, lost) for attempt in range(50)]
    assert delays[0] == 0.25
    assert delays[-1] == 10.0
    assert backoff(0, HelperError("h", "no")) is None


def test_a_selection_goes_to_the_host_and_the_last_lines_only_once() -> None:
    selection = Selection(ranks=(0, 2), tail=5, follow=True)
    first = selection.args("/spool")
    again = selection.args("/spool", Position(offsets={"0.0.out": 7}, caught_up=True))
    assert (first["tail"], first["offsets"], first["agent"], first["ranks"]) == (5, {}, False, [0, 2])
    assert (again["tail"], again["offsets"]) == (None, {"0.0.out": 7})


def test_a_host_that_is_given_up_is_not_waited_for() -> None:
    silent = threading.Event()

    def open_stream(host: str, _: Position) -> Iterator[LogFrame]:
        yield line(host, 0)
        if host == "silent":
            silent.wait(20)
        yield end()

    merge = Merge(["a", "silent"], open_stream)
    events = until(merge, lambda events: merge.ended and len(texts(events)) == 2)
    merge.give_up("silent")
    assert merge.batch(20) == []
    assert merge.done
    silent.set()
    assert sorted(texts(events)) == ["a", "silent"]


def test_a_host_that_names_more_files_than_a_run_can_have_is_given_up_alone() -> None:
    def many() -> Iterator[LogFrame]:
        for number in range(10**9):
            yield line("x", 0, start=number)

    streams: dict[str, Iterator[LogFrame]] = {"bad": many(), "good": iter([line("fine", 0), end()])}
    with Merge(streams, lambda host, _: streams[host], past=False) as merge:
        events = until(merge, lambda _: merge.done)
    assert [event.host for event in events if isinstance(event, StreamEnded)] == ["good"]
    broken = [event for event in events if isinstance(event, StreamBroken)]
    assert [event.notice for event in broken] == ["no more logs of bad: bad: its logs are of more than 32768 files"]
    assert len(merge.offsets["bad"]) <= merging.MAX_FILES
