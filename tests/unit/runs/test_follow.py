"""A run followed to its end: hosts that break off, that come back, that never do; and the attempt that follows."""

from __future__ import annotations

import threading
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from clusterddp.errors import HostsError, RunRemovedError, UnreachableError
from clusterddp.logs import merge as merging
from clusterddp.logs.checked_frames import End, FilePart, Lines, LogFrame
from clusterddp.logs.fold import Fold
from clusterddp.logs.merge import Event, FrameArrived, StreamBroken
from clusterddp.logs.render import TextRenderer
from clusterddp.logs.selection import Position, Selection
from clusterddp.remote.shared.run.run_record import RunRecord
from clusterddp.runs import ending
from clusterddp.runs import follow as following
from clusterddp.runs.follow import Follower
from clusterddp.runs.run_on_hosts import unheard_hosts
from clusterddp.runs.view.run_view import RunView, run_views
from tests.unit.runs_told import Told

if TYPE_CHECKING:
    from collections.abc import Callable, Container, Iterator, Mapping, Sequence

    from clusterddp.runs.view.verdict_lines import Verdict

END = End(ended={"exit_code": 0})
Stream = list[LogFrame | Exception | threading.Event]


def line(text: str, offset: int = 0) -> Lines:
    part = FilePart(file="0.0.out", start=0, local_rank=0, rank=0, stream="out", offset=offset, next=offset + len(text))
    return Lines(part=part, body=text.encode())


def lost(host: str) -> UnreachableError:
    return UnreachableError(host, "no answer")


class Scripted:
    """A run whose hosts answer by a script: streams by host and by turn (the last one stays), and views by turn."""

    def __init__(self, streams: dict[str, list[Stream]], told: list[RunView | Exception], attempt: int = 1) -> None:
        self.streams, self.told, self.attempt = streams, told, attempt
        self.id = "r1"
        self.spools = dict.fromkeys(streams, "/spool")
        self.record = RunRecord(hosts=tuple(streams))
        self.asked: list[dict[str, Any]] = []
        self.selection = Selection()
        self.attempts: dict[int, dict[str, str]] = {}
        self.unheard: Mapping[int, Sequence[str]] = {}

    @property
    def hosts(self) -> set[str]:
        return {*self.spools, *self.record.hosts}

    def selected(self, selection: Selection) -> list[str]:
        return [name for name in self.spools if selection.pattern in (None, name)]

    def tail(self, selection: Selection) -> Scripted:
        self.selection = selection
        return self

    def __call__(self, host: str, at: Position) -> Iterator[LogFrame]:
        selection = self.selection
        self.asked.append(selection.args(self.spools[host], selection.resume_position(host, at)))
        turns = self.streams[host]
        for item in turns.pop(0) if len(turns) > 1 else turns[0]:
            if isinstance(item, Exception):
                raise item
            if isinstance(item, threading.Event):  # the host says nothing more until then
                item.wait()
                return
            yield item

    def at(self, view: RunView) -> Scripted:
        later = Scripted(self.streams, self.told, view.attempt)
        later.spools = view.current | {name: "" for name in view.record.hosts if name not in view.current}
        later.record, later.asked, later.attempts = view.record, self.asked, view.spools
        later.unheard = unheard_hosts(view)
        return later

    def of_attempt(self, number: int) -> Scripted:
        earlier = Scripted(self.streams, self.told, number)
        earlier.spools = {**self.attempts[number], **dict.fromkeys(self.unheard.get(number, ()), "")}
        earlier.asked = self.asked
        return earlier

    def begun(self, progress: Callable[[str], None]) -> Scripted:  # noqa: ARG002
        return self

    def watched(self, view: RunView) -> Verdict | None:
        return replace(view, watched=True).verdict()

    def silence(self, host: str) -> float | None:  # noqa: ARG002
        return None

    def ping(self, host: str) -> None: ...

    def close_connection(self, host: str, reason: str) -> None: ...

    def connected(self, host: str) -> bool:  # noqa: ARG002
        return True

    def view(self, hosts: Container[str] | None = None, **_: object) -> RunView:  # noqa: ARG002 - all tell the same
        answer = self.told.pop(0) if len(self.told) > 1 else self.told[0]
        if isinstance(answer, Exception):
            raise answer
        return answer


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ending, "LOST_AFTER", 0.3)
    monkeypatch.setattr(ending, "CHECK_INTERVAL", 0.02)
    monkeypatch.setattr(ending, "SILENCE_LIMIT", 0.1)
    monkeypatch.setattr(following, "backoff", lambda *_: 0.01)
    monkeypatch.setattr(following, "Streams", Scripted.tail)
    monkeypatch.setattr(merging, "SILENCE_TIMEOUT", 0.1)


def succeeded(*hosts: int, silent: tuple[str, ...] = ()) -> RunView:
    known = [f"gpu{rank:02}" for rank in hosts] + list(silent)
    (view,) = run_views([Told(rank, hosts=known).succeeded(5).node for rank in hosts], silent)
    return view


def followed(run: Scripted, said: list[tuple[str, str]] | None = None, **selection: Any) -> tuple[Any, list[str]]:
    """The verdict and the lines shown of a run that is followed to its end; its notices are added to ``said``."""
    shown: list[str] = []

    def show(events: list[Event]) -> None:
        shown.extend(event.body.decode() for event in events if isinstance(event, FrameArrived) and event.body)

    tell = (lambda *event: said.append(event)) if said is not None else (lambda *_: None)
    verdict = Follower(run, Selection(follow=True, **selection), tell).follow(show)  # type: ignore[arg-type]
    return verdict, shown


def test_several_lost_hosts_are_given_up_when_the_others_have_ended() -> None:
    streams: dict[str, list[Stream]] = {
        "gpu00": [[line("a\n"), END]],
        "gpu01": [[line("b\n"), lost("gpu01")], [lost("gpu01")]],
        "gpu02": [[lost("gpu02")]],
    }
    verdict, shown = followed(Scripted(streams, [succeeded(0, silent=("gpu01", "gpu02"))]))
    assert sorted(shown) == ["a\n", "b\n"]
    assert (verdict.exit_code, verdict.line) == (125, "gpu01, gpu02 were lost: no answer")


@pytest.mark.parametrize("follow", [True, False])
def test_folded_lines_are_shown_while_nothing_comes_and_before_the_follower_goes_on(*, follow: bool) -> None:
    renderer, shown, quiet = TextRenderer(), [], threading.Event()
    renderer.fold(Fold())

    def show(events: list[Event]) -> None:
        text = renderer.draw(events)
        renderer.notices.clear()  # before one all lines are shown
        if text:
            shown.append((text, len(events)))
            quiet.set()

    first, second = line("a\n"), line("b\n", 2)
    streams: dict[str, list[Stream]] = {"gpu00": [[first, quiet], [second, END]]}
    run: Any = Scripted(streams, [succeeded(0)])
    Follower(run, Selection(follow=follow), wait=renderer.wait).follow(show)
    assert shown[0] == (b"[0 gpu00:0] a\n", 0)
    assert [text for text, _ in shown] == [b"[0 gpu00:0] a\n", b"[0 gpu00:0] b\n"]
    assert renderer.wait() is None


@pytest.mark.parametrize("longer", [0, 60])
def test_a_network_that_is_gone_for_long_is_waited_for(longer: int) -> None:
    gone: Stream = [lost("gpu00")]
    streams: dict[str, list[Stream]] = {
        "gpu00": [[line("a\n"), lost("gpu00")], *[gone] * 60, [line("b\n", 2), END]],
        "gpu01": [[lost("gpu01")], *[gone] * (60 + longer), [line("c\n"), END]],
    }
    verdict, shown = followed(Scripted(streams, [succeeded(0, 1)]))
    assert sorted(shown) == ["a\n", "b\n", "c\n"]
    assert verdict.exit_code == 0


def test_a_host_that_has_told_its_end_is_not_lost_for_a_moments_silence() -> None:
    streams: dict[str, list[Stream]] = {"gpu00": [[END]], "gpu01": [[END]]}
    nobody = HostsError([lost("gpu00"), lost("gpu01")])
    answers: list[RunView | Exception] = [nobody, succeeded(0, silent=("gpu01",)), succeeded(0, 1)]
    verdict, _ = followed(Scripted(streams, answers))
    assert (verdict.state, verdict.exit_code) == ("succeeded", 0)


def second_attempt(**changed: Any) -> RunView:
    view = succeeded(0)
    return replace(view, nodes=(view.nodes[0]._replace(attempt=2, spool="/spool/2", **changed),))


def test_the_next_attempt_is_shown_from_its_beginning() -> None:
    second = second_attempt()
    run = Scripted({"gpu00": [[line("a\n"), END]]}, [second])

    verdict, shown = followed(run, start={"gpu00": {"0.0.out": 7}}, tail=3, pattern="gpu00")
    assert (verdict.exit_code, shown) == (0, ["a\n", "a\n"])
    assert [(asked["offsets"], asked["tail"]) for asked in run.asked] == [({"0.0.out": 7}, 3), ({}, None)]
    assert [asked["spool"] for asked in run.asked] == ["/spool", "/spool/2"]


def test_the_followers_run_is_that_of_the_last_attempt_with_the_hosts_that_joined_it() -> None:
    second = succeeded(0, 1)
    nodes = tuple(node._replace(attempt=2, spool=f"/spool/2/{node.host}") for node in second.nodes)
    run: Any = Scripted({"gpu00": [[END]]}, [second_attempt(), second_attempt(), replace(second, nodes=nodes)])
    follower = Follower(run, Selection(follow=True, pattern="gpu00"))
    follower.follow(lambda _events: None)
    assert (follower.run.attempt, follower.run.spools) == (2, {"gpu00": "/spool/2/gpu00", "gpu01": "/spool/2/gpu01"})


@pytest.mark.parametrize("pattern", [None, "gpu00"])
def test_a_run_that_goes_on_after_until_is_followed_no_longer(pattern: str | None) -> None:
    """Its hosts have sent all lines of that time, and have ended their streams."""
    (live,) = run_views([Told(0).node])
    run: Any = Scripted({"gpu00": [[line("a\n"), End(ended=None)]]}, [live])
    follower = Follower(run, Selection(follow=True, until_ns=1, pattern=pattern))
    follower.follow(lambda _events: None)
    assert (follower.until_passed, follower.verdict) == (True, None)


def test_after_until_no_host_out_of_reach_is_waited_for_though_the_run_goes_on() -> None:
    (live,) = run_views([Told(0, hosts=["gpu00", "gpu01"]).node], ["gpu01"])
    run: Any = Scripted({"gpu00": [[line("a\n"), End(ended=None)]], "gpu01": [[lost("gpu01")]]}, [live])
    said: list[tuple[str, str]] = []
    follower = Follower(run, Selection(follow=True, until_ns=1), lambda *event: said.append(event))
    events = [event for batch in follower.batches() for event in batch]
    assert (follower.until_passed, follower.verdict) == (True, None)
    assert [event.retry for event in events if isinstance(event, StreamBroken)][-1] is None
    assert [event for event, _ in said][-1] == "missing"


@pytest.mark.parametrize("until", [1, 1 << 62])
def test_a_run_that_has_ended_has_its_verdict_whenever_until_is(until: int) -> None:
    ending_now = Told(0).ended("succeeded", 5)
    ending_now.fields["concluding"] = True
    views = [run_views([ending_now.node])[0]] if until > 1 else []
    verdict, _ = followed(Scripted({"gpu00": [[END]]}, [*views, succeeded(0)]), until_ns=until)
    assert verdict.exit_code == 0


def test_attempts_that_began_and_ended_while_nobody_looked_are_shown_too() -> None:
    """This machine slept: when it wakes, the run is two attempts further."""
    nodes = []
    for attempt in (2, 3):
        told = Told(0, hosts=["gpu00"])
        told.fields.update(attempt=attempt, spool=f"/spool/{attempt}")
        nodes.append(told.succeeded(5).node)
    (view,) = run_views(nodes)
    run: Any = Scripted({"gpu00": [[line("a\n"), END], [line("b\n"), END], [line("c\n"), END]]}, [view])
    said: list[tuple[str, str]] = []
    _, shown = followed(run, said)
    assert shown == ["a\n", "b\n", "c\n"]
    assert [asked["spool"] for asked in run.asked] == ["/spool", "/spool/2", "/spool/3"]
    assert said == [("relaunched", "attempt 2 on gpu00"), ("relaunched", "attempt 3 on gpu00")]


def test_of_an_attempt_that_nobody_looked_at_a_silent_host_is_told_and_not_waited_for() -> None:
    nodes = []
    for attempt, hosts in ((2, ["gpu00", "gpu01"]), (3, ["gpu00"])):
        told = Told(0, hosts=hosts)
        told.fields.update(attempt=attempt, spool=f"/spool/{attempt}")
        nodes.append(told.succeeded(5).node)
    (view,) = run_views(nodes, ["gpu01"])
    run: Any = Scripted({"gpu00": [[line("a\n"), END], [line("b\n"), END], [line("c\n"), END]]}, [view])
    said: list[tuple[str, str]] = []
    _, shown = followed(run, said)
    assert (shown, [event for event, _ in said]) == (["a\n", "b\n", "c\n"], ["relaunched", "missing", "relaunched"])
    assert "`clusterddp logs r1 --attempt 2 --host gpu01` asks for them again" in said[1][1]


def test_another_attempt_is_shown_when_all_its_hosts_have_begun() -> None:
    told = [Told(rank, hosts=["gpu00", "gpu01"]) for rank in (0, 1)]
    for one in told:
        one.fields.update(attempt=2, spool=f"/spool/2/{one.host}")
    ((begins,), (begun,)) = (run_views(one.node for one in nodes) for nodes in (told[:1], told))
    ended = run_views(one.succeeded(5).node for one in told)[0]
    streams: dict[str, list[Stream]] = {"gpu00": [[line("a\n"), END]], "gpu01": [[line("b\n"), END]]}
    run = Scripted(streams, [begins, begins, begun, ended])
    verdict, shown = followed(run)
    assert (verdict.exit_code, sorted(shown)) == (0, ["a\n", "a\n", "b\n", "b\n"])
    assert sorted(asked["spool"] for asked in run.asked) == ["/spool", "/spool", "/spool/2/gpu00", "/spool/2/gpu01"]


def test_a_next_attempt_is_told_with_the_hosts_that_it_is_without() -> None:
    second = second_attempt(record=RunRecord(hosts=("gpu00",), lost=("gpu01",)))
    told: list[tuple[str, str]] = []
    run: Any = Scripted({"gpu00": [[line("a\n"), END]]}, [second])
    Follower(run, Selection(follow=True), lambda *event: told.append(event)).follow(lambda _events: None)
    assert told == [("lost", "gpu01 is lost"), ("relaunched", "attempt 2 on gpu00")]


def test_a_host_that_is_held_up_is_not_waited_for_when_the_others_are_in_the_next_attempt(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(ending, "NEXT_ATTEMPT_LIMIT", 0.1)
    second = second_attempt()
    for_good = threading.Event()
    streams: dict[str, list[Stream]] = {"gpu00": [[line("a\n"), END]], "gpu01": [[for_good]]}
    try:
        verdict, shown = followed(Scripted(streams, [second]))
    finally:
        for_good.set()
    assert (verdict.exit_code, shown) == (0, ["a\n", "a\n"])


def test_it_is_said_once_that_no_host_can_be_heard() -> None:
    gone: Stream = [lost("gpu00")]
    streams: dict[str, list[Stream]] = {
        "gpu00": [[line("a\n"), lost("gpu00")], *[gone] * 3, [line("b\n", 2), END]],
        "gpu01": [[lost("gpu01")], *[gone] * 3, [line("c\n"), END]],
    }
    told: list[tuple[str, str]] = []
    run: Any = Scripted(streams, [succeeded(0, 1)])
    Follower(run, Selection(follow=True), lambda *event: told.append(event)).follow(lambda _events: None)
    assert [event for event, _ in told] == ["unheard"]
    assert "no host of the run answers" in told[0][1]
    assert "`clusterddp status r1`" in told[0][1]


def test_a_run_that_was_removed_from_all_its_hosts_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(following, "POLL_INTERVAL", 60.0)
    streams: dict[str, list[Stream]] = {"gpu00": [[END]], "gpu01": [[END]]}
    with pytest.raises(RunRemovedError, match="was removed"):
        followed(Scripted(streams, [RunRemovedError("run r1 was removed from its hosts")]))


def test_a_run_that_only_one_host_has_removed_is_asked_of_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(following, "POLL_INTERVAL", 60.0)
    streams: dict[str, list[Stream]] = {"gpu00": [[END]], "gpu01": [[END]]}
    verdict, _ = followed(Scripted(streams, [RunRemovedError("gone"), succeeded(0, 1)]))
    assert (verdict.state, verdict.exit_code) == ("succeeded", 0)


def interrupted(run: Scripted, *, at_lines: bool = False, shown: bool = False) -> Follower:
    """A follower of a run that Ctrl-C ends once nothing more has come, or ``at_lines``, which were ``shown`` or not."""
    follower = Follower(run, Selection(follow=True), wait=lambda: 0.2)  # type: ignore[arg-type]
    for batch in follower.batches():
        if at_lines and batch and shown:
            follower.note_shown()
        if at_lines == bool(batch):
            break
    return follower


def rest_of(follower: Follower, *hosts: str) -> list[str]:
    events = [event for batch in follower.rest(set(hosts)) for event in batch]
    return [event.body.decode() for event in events if isinstance(event, FrameArrived)]


def test_the_rest_of_an_interrupted_follow_begins_after_what_was_shown() -> None:
    silence = threading.Event()
    run = Scripted({"gpu00": [[line("a\n"), silence], [line("b\n", 2), END]]}, [succeeded(0)])
    follower = interrupted(run)
    assert rest_of(follower, "gpu00") == ["b\n"]
    assert [(asked["follow"], asked["offsets"]) for asked in run.asked] == [(True, {}), (False, {"0.0.out": 2})]
    silence.set()


@pytest.mark.parametrize(("shown", "start"), [(True, {"0.0.out": 2}), (False, {})])
def test_the_rest_begins_after_the_last_batch_if_that_was_shown(*, shown: bool, start: dict[str, int]) -> None:
    silence = threading.Event()
    run = Scripted({"gpu00": [[line("a\n"), silence], [END]]}, [succeeded(0)])
    assert rest_of(interrupted(run, at_lines=True, shown=shown), "gpu00") == []
    assert run.asked[-1]["offsets"] == start
    silence.set()


def test_the_rest_is_asked_of_the_hosts_that_answer_and_a_silent_one_is_not_waited_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(following, "REST_TIMEOUT", 0.5)
    silence = threading.Event()
    streams: dict[str, list[Stream]] = {
        "gpu00": [[line("a\n"), silence], [line("b\n", 2), END]],
        "gpu01": [[line("a\n"), silence], [silence]],
        "gpu02": [[line("a\n"), silence], [line("never asked\n")]],
    }
    run = Scripted(streams, [succeeded(0, 1, 2)])
    assert rest_of(interrupted(run), "gpu00", "gpu01") == ["b\n"]
    silence.set()


def test_there_is_no_rest_of_a_run_that_was_never_followed() -> None:
    run = Scripted({"gpu00": [[END]]}, [succeeded(0)])
    assert rest_of(Follower(run, Selection(follow=True)), "gpu00") == []  # type: ignore[arg-type]
