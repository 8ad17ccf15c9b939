"""Which streams a follower gives up when the run's hosts have kept how it ended, and what it says of their lines."""

from __future__ import annotations

import threading
import time
from collections import Counter
from dataclasses import replace
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import pytest

from clusterddp.errors import HelperError, UnreachableError
from clusterddp.logs import merge as merging
from clusterddp.logs.checked_frames import CaughtUp, End, WorkersExited, WorkersStarted
from clusterddp.logs.merge import Merge, StreamBroken, StreamEnded
from clusterddp.remote.shared.schema.record import to_fields
from clusterddp.remote.shared.verdict.judge import VerdictRecord
from clusterddp.runs import ending
from clusterddp.runs.ending import EndDetector, query_view
from clusterddp.runs.run_on_hosts import unheard_hosts
from clusterddp.runs.view.run_view import RunView, run_views
from tests.lab.system import wait_until
from tests.unit.runs_told import Told

if TYPE_CHECKING:
    from collections.abc import Container, Iterator

    from clusterddp.logs.checked_frames import LogFrame
    from clusterddp.logs.selection import Position
    from clusterddp.runs.run_on_hosts import RunOnHosts
    from clusterddp.runs.streams import Streams

HOSTS = ("gpu00", "gpu01", "gpu02")
EXITED = WorkersExited(count=1)
END = End(ended={"exit_code": 0})
LONG = 1000.0  # seconds; nothing here takes so long
LIMIT = 60.0  # seconds for what a test waits for


class Followed:
    """A run of which the first host has ended, with the same view for all who ask; the others' streams stay open.

    Attributes:
        alive: Hosts that give a sign of life when they are asked for one.
        looks: How often the run's hosts were asked.
        asked: How often each host was asked for a sign of life.
        dropped: Hosts whose connections were ended.
        unconnected: Hosts to which there is no connection.
    """

    id, attempt = "r1", 1

    def __init__(self, view: RunView, alive: Container[str] = ()) -> None:
        self.told, self.alive, self.looks = view, alive, 0
        self.hosts = set(HOSTS)
        self.looked = threading.Condition()
        self.asked: Counter[str] = Counter()
        self.dropped: list[str] = []
        self.unconnected: set[str] = set()
        self._answered: dict[str, float] = {}

    def view(self, hosts: Container[str] | None = None, **_: object) -> RunView:
        with self.looked:
            self.looks += 1
            self.looked.notify_all()
        nodes = [node for node in self.told.nodes if hosts is None or node.host in hosts]
        return replace(self.told, nodes=tuple(nodes))

    def silence(self, host: str) -> float | None:
        return time.monotonic() - self._answered[host] if host in self._answered else LONG

    def connected(self, host: str) -> bool:
        return host not in self.unconnected

    def ping(self, host: str) -> None:
        with self.looked:
            self.asked[host] += 1
            if host in self.alive:
                self._answered[host] = time.monotonic()
            self.looked.notify_all()

    def close_connection(self, host: str, reason: str) -> None:
        assert reason.startswith("no answer for ")
        with self.looked:
            self.dropped.append(host)
            self.looked.notify_all()


def nodes(*ended: int, running: tuple[int, ...] = (), **record: Any) -> list[Told]:
    return [Told(rank, hosts=list(HOSTS), **record).succeeded(5) for rank in ended] + [
        Told(rank, hosts=list(HOSTS), **record) for rank in running
    ]


def view_of(told: list[Told], heard: tuple[str, ...] = (), **record: Any) -> RunView:
    """The run as these nodes tell it; the first has kept a verdict that heard these hosts, if any."""
    if heard:
        missing = tuple(name for name in HOSTS if name not in heard)
        fields: dict[str, Any] = {"attempt": 1, "state": "failed", "exit_code": 125, "line": "lost", **record}
        copy = VerdictRecord(writer=heard[0], member=0, reported=heard, missing=missing, **fields)
        told[0].fields["verdict"] = to_fields(copy)
    silent = [name for name in HOSTS if name not in {one.host for one in told}]
    (view,) = run_views([one.node for one in told], silent)
    return view


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ending, "CHECK_INTERVAL", 0.01)
    monkeypatch.setattr(ending, "SILENCE_LIMIT", 0.05)
    monkeypatch.setattr(ending, "LOST_AFTER", LONG)
    monkeypatch.setattr(merging, "SILENCE_TIMEOUT", 0.01)


@pytest.fixture
def open_for_good() -> Iterator[threading.Event]:
    """Holds open the streams of all hosts but the first."""
    event = threading.Event()
    yield event
    event.set()


def watching(run: Followed, merge: Merge) -> EndDetector:
    """One that watches the run, which also sends its own lines."""
    return EndDetector(cast("RunOnHosts", run), cast("Streams", run), merge)


def followed(run: Followed, held: threading.Event, end: threading.Event | None = None) -> tuple[Merge, EndDetector]:
    """``end``: what the first host waits for, once its workers have ended and before it has."""

    def stream(host: str, _: Position) -> Iterator[LogFrame]:
        if host != HOSTS[0]:
            held.wait(LIMIT)
            return
        if end:
            yield EXITED
            end.wait(LIMIT)
        yield END

    merge = Merge(HOSTS, stream)
    return merge, watching(run, merge)


def given_up(run: Followed, held: threading.Event) -> EndDetector:
    """After the merge has come to its end by itself, the other streams being open still."""
    merge, end = followed(run, held)
    with merge, end:
        for _ in merge:
            pass
    assert not held.is_set()
    return end


def still_waited_for(run: Followed, held: threading.Event, given_up: int = 0) -> set[str]:
    """After so many hosts were given up, and many more looks."""
    merge, end = followed(run, held)
    with merge, end:
        merge.batch()
        with run.looked:
            assert run.looked.wait_for(lambda: len(end.given_up) == given_up, 20)
            looks = run.looks + 20
            assert run.looked.wait_for(lambda: run.looks > looks, 20)
        return set(merge.waited_for)


def test_streams_of_hosts_that_the_verdict_did_without_are_given_up_while_they_are_open(
    open_for_good: threading.Event,
) -> None:
    run = Followed(view_of(nodes(0), heard=("gpu00",)), alive=HOSTS)
    assert set(given_up(run, open_for_good).given_up) == {"gpu01", "gpu02"}


def test_hosts_that_have_ended_are_waited_for_though_the_verdict_of_one_cut_off_alone_did_without_them(
    open_for_good: threading.Event,
) -> None:
    run = Followed(view_of(nodes(0, 1, 2), heard=("gpu00",)), alive=HOSTS)
    assert still_waited_for(run, open_for_good) == {"gpu01", "gpu02"}


def test_a_host_that_had_its_say_is_given_up_when_it_gives_no_sign_of_life(open_for_good: threading.Event) -> None:
    run = Followed(view_of(nodes(0, 1, 2), heard=HOSTS))
    assert set(given_up(run, open_for_good).given_up) == {"gpu01", "gpu02"}


def test_a_host_that_lives_is_waited_for_however_late_its_lines_are(open_for_good: threading.Event) -> None:
    run = Followed(view_of(nodes(0, 1, 2), heard=HOSTS), alive={"gpu01"})
    assert still_waited_for(run, open_for_good, given_up=1) == {"gpu01"}


def test_nobody_is_given_up_while_the_run_lives(open_for_good: threading.Event) -> None:
    run = Followed(view_of(nodes(0, running=(1, 2))))
    assert still_waited_for(run, open_for_good) == {"gpu01", "gpu02"}


def test_silent_hosts_are_looked_for_where_no_verdict_is_kept(open_for_good: threading.Event) -> None:
    assert still_waited_for(Followed(view_of(nodes(0))), open_for_good) == {"gpu01", "gpu02"}


def test_silent_hosts_are_looked_for_where_they_may_be_in_a_later_attempt(open_for_good: threading.Event) -> None:
    run = Followed(view_of(nodes(0, relaunch=2), heard=("gpu00",)))
    assert still_waited_for(run, open_for_good) == {"gpu01", "gpu02"}


def test_it_is_said_which_lines_may_be_missing_and_how_to_see_them(open_for_good: threading.Event) -> None:
    (line,) = given_up(Followed(view_of(nodes(0), heard=("gpu00",))), open_for_good).missing_lines_notice()
    assert line.startswith("lines of gpu01, gpu02 since ")
    assert "`clusterddp logs r1 --attempt 1 --host gpu01,gpu02`" in line


def test_lines_of_a_host_whose_stream_broke_for_good_may_be_missing_too() -> None:
    def stream(host: str, _: Position) -> Iterator[LogFrame]:
        if host == HOSTS[1]:
            yield CaughtUp(offsets={})
        if host != HOSTS[0]:
            raise HelperError(host, "the run's logs are gone")
        yield END

    with Merge(HOSTS, stream) as merge:
        assert list(merge)
    (line,) = watching(Followed(view_of(nodes(0))), merge).missing_lines_notice()
    assert line.startswith("lines of gpu01, gpu02 since ")
    assert merge.failed["gpu02"] is None  # nothing came from it


def test_nothing_is_said_where_no_host_was_given_up(open_for_good: threading.Event) -> None:
    open_for_good.set()
    merge, end = followed(Followed(view_of(nodes(0, 1, 2), heard=HOSTS), alive=HOSTS), open_for_good)
    with merge, end:
        pass
    assert end.missing_lines_notice() == []


def test_a_host_that_is_silent_when_workers_end_is_given_up_without_a_wait_when_the_verdict_is_there(
    open_for_good: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, over = Followed(view_of(nodes(0, 1, 2), heard=HOSTS), alive={"gpu01"}), threading.Event()
    merge, end = followed(run, open_for_good, over)
    with merge, end:
        with run.looked:
            # Again and again, for longer than SILENCE_LIMIT.
            assert run.looked.wait_for(lambda: run.asked["gpu02"] > 20, LIMIT)
        assert run.asked["gpu01"] == 1
        monkeypatch.setattr(ending, "CHECK_INTERVAL", LONG)  # no check follows but the one right after the end
        assert not run.looks
        over.set()
        assert merge.batch(LIMIT)  # the end of the first host; nothing comes of the others
        wait_until("the silent host is given up", lambda: "gpu02" not in merge.waited_for)
        assert set(merge.waited_for) == {"gpu01"}
    assert set(end.given_up) == {"gpu02"}


def test_a_host_that_says_again_and_again_that_workers_ended_does_not_have_the_others_asked_more_often(
    open_for_good: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ending, "CHECK_INTERVAL", LONG)
    run = Followed(view_of(nodes(0, 1, 2), heard=HOSTS), alive={"gpu01", "gpu02"})

    def stream(host: str, _: Position) -> Iterator[LogFrame]:
        if host == HOSTS[0]:
            for _count in range(50):
                yield EXITED
            yield END
        open_for_good.wait(LIMIT)

    merge = Merge(HOSTS, stream)
    with merge, watching(run, merge):
        assert [type(event) for event in merge.batch(LIMIT)] == [StreamEnded]
        with run.looked:
            assert run.looked.wait_for(lambda: {"gpu01", "gpu02"} <= set(run.asked), LIMIT)
    assert max(run.asked.values()) == 1


def test_nobody_is_asked_for_a_sign_of_life_while_all_workers_are_at_work(open_for_good: threading.Event) -> None:
    run = Followed(view_of(nodes(0, 1, 2), heard=HOSTS))

    def stream(_host: str, _: Position) -> Iterator[LogFrame]:
        yield WorkersStarted(start=1)
        open_for_good.wait(LIMIT)

    merge = Merge(HOSTS, stream, past=False)
    with merge, watching(run, merge):
        came = 0
        while came < len(HOSTS):
            came += len(merge.batch(LIMIT))
    assert not run.asked


def test_a_silent_host_whose_answer_is_needed_is_asked_over_a_new_connection_once(
    open_for_good: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ending, "RECONNECT_AFTER", 0.1)
    run = Followed(view_of(nodes(0)), alive={"gpu01"})
    assert still_waited_for(run, open_for_good) == {"gpu01", "gpu02"}
    assert run.dropped == ["gpu02"]


def test_a_host_that_answers_over_a_new_connection_is_no_longer_silent_and_its_stream_follows(
    open_for_good: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its verdict may be the only one: without it, the followers would judge the run by themselves."""
    monkeypatch.setattr(ending, "RECONNECT_AFTER", LONG)
    run = Followed(view_of(nodes(0, 1, 2)), alive={"gpu02"})
    assert still_waited_for(run, open_for_good) == {"gpu01", "gpu02"}
    assert run.dropped == ["gpu01"]


def test_no_connection_is_ended_where_the_verdict_is_known(
    open_for_good: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ending, "RECONNECT_AFTER", 0.0)
    run = Followed(view_of(nodes(0, 1, 2), heard=HOSTS))
    given_up(run, open_for_good)
    assert not run.dropped


def out_of_reach(run: Followed, tries: list[str], back: threading.Event, end: threading.Event) -> Merge:
    """The last host is not reached until it is back, and then tried again after a long pause; the others end."""

    def stream(host: str, _: Position) -> Iterator[LogFrame]:
        if host != HOSTS[-1]:
            end.wait(LIMIT)
        else:
            tries.append(host)
            if not back.is_set():
                raise UnreachableError(host, "connection refused")
            run.unconnected.discard(host)
        yield END

    run.unconnected.add(HOSTS[-1])
    return Merge(HOSTS, stream, retry=lambda _attempt, _error: LONG)


def test_a_host_that_is_back_is_reached_when_the_run_ends_and_not_after_the_pause_before_the_next_try() -> None:
    run = Followed(view_of(nodes(0, 1, 2), heard=HOSTS))
    tries: list[str] = []
    back, end = threading.Event(), threading.Event()
    merge = out_of_reach(run, tries, back, end)
    with merge, watching(run, merge) as detector:
        assert [type(event) for event in merge.batch(LIMIT)] == [StreamBroken]
        back.set()
        end.set()
        assert [event for batch in merge for event in batch if isinstance(event, StreamBroken)] == []
        assert set(merge.ended) == set(HOSTS)
    assert (len(tries), detector.given_up) == (2, {})


def test_a_host_that_is_not_back_when_the_run_ends_is_tried_once_and_given_up() -> None:
    run, end = Followed(view_of(nodes(0, 1, 2), heard=HOSTS)), threading.Event()
    tries: list[str] = []
    merge = out_of_reach(run, tries, threading.Event(), end)
    with merge, watching(run, merge) as detector:
        assert [type(event) for event in merge.batch(LIMIT)] == [StreamBroken]
        end.set()
        for _ in merge:
            pass
    assert (len(tries), set(detector.given_up)) == (2, {HOSTS[-1]})


def test_a_host_whose_connection_is_never_made_is_given_up_in_the_end(
    open_for_good: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ending, "REOPEN_LIMIT", 0.1)
    run = Followed(view_of(nodes(0, 1, 2), heard=HOSTS), alive={"gpu01"})
    run.unconnected.add("gpu02")
    assert still_waited_for(run, open_for_good, given_up=1) == {"gpu01"}


def test_a_host_that_was_not_asked_as_silent_has_missing_lines_of_an_earlier_attempt() -> None:
    nodes = []
    for attempt, planned in ((2, HOSTS), (3, HOSTS[:2])):
        for rank in (0, 1):
            told = Told(rank, hosts=[*planned])
            told.fields.update(attempt=attempt, spool=f"/spool/{attempt}")
            nodes.append(told.succeeded(5).node)
    (view,) = run_views(nodes, [])
    run = cast("RunOnHosts", SimpleNamespace(view=lambda *_, **__: view))
    assert unheard_hosts(query_view(run, None, {HOSTS[2]})) == {2: (HOSTS[2],)}
