"""A followed run that Ctrl-C or Ctrl-\\ ends or leaves: its exit code, and the signals meanwhile."""

from __future__ import annotations

import contextlib
import math
import os
import signal
import sys
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from clusterddp.cli import attach, interrupts
from clusterddp.cli.output import STDOUT
from clusterddp.cli.run_lines import Display
from clusterddp.errors import UnreachableError
from clusterddp.logs.checked_frames import FilePart, Lines
from clusterddp.logs.merge import FrameArrived
from clusterddp.logs.render import TextRenderer
from clusterddp.remote.shared.run.run_record import RunRecord
from clusterddp.remote.shared.run.run_state import RunState
from clusterddp.remote.shared.verdict.judge import VerdictRecord
from clusterddp.runs.proof import Proof
from clusterddp.runs.view.verdict_lines import Verdict

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from clusterddp.logs.merge import Event


@pytest.fixture(autouse=True)
def _signals(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """No signal before; the handlers as they were, once the test is over."""
    monkeypatch.setattr(interrupts, "_sigterm_at", -math.inf)
    numbers = (signal.SIGQUIT, signal.SIGTERM)
    before = [signal.getsignal(number) for number in numbers]
    yield
    for number, handler in zip(numbers, before, strict=True):
        signal.signal(number, handler)


class Left(Exception):
    """The process ends in the middle of the stop."""


def raise_left(code: int) -> None:
    raise Left(code)


def press(number: signal.Signals) -> None:
    """Send this process a signal, as a key of the terminal does."""
    os.kill(os.getpid(), number)


def followed(
    first: signal.Signals,
    *,
    stop: Callable[[], None] = lambda: None,
    result: Path | None = None,
    verdict: Verdict | None = None,
    notifier: Any = None,
) -> int:
    """Follow a run, press a key at its begin, and ``stop`` while it is stopped; the exit code."""

    def no_answer(*_: object) -> None:
        raise UnreachableError("gpu00", "no answer")

    def begun(_: object) -> None:
        press(first)

    def stopped(**_: object) -> list[Proof]:
        stop()
        return [Proof(host="gpu00", error="gpu00: no answer")]

    run: Any = SimpleNamespace(
        id="abcdefghij",
        cluster=SimpleNamespace(inventory=SimpleNamespace(pattern="")),
        hosts={"gpu00"},
        record=RunRecord(hosts=("gpu00",)),
        begun=begun,
        stop=stopped,
        stopped=lambda _: verdict,
        status=no_answer,
    )
    progress: Any = SimpleNamespace(show=print, end=lambda: None, watch=print)
    nothing: Any = None
    return attach.attach(nothing, run, progress, nothing, grace=1.0, result=result, notifier=notifier, bundle=False)


def test_ctrl_c_has_its_exit_code_though_no_host_answers_for_the_result(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert followed(signal.SIGINT, result=tmp_path / "r.json") == 130
    assert "r.json: cannot be written (gpu00: no answer); `clusterddp status" in capsys.readouterr().err


def test_quit_while_the_run_is_stopped_is_a_second_ctrl_c(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    codes: list[int] = []

    def leave(code: int) -> None:
        codes.append(code)
        raise Left

    monkeypatch.setattr(os, "_exit", leave)
    with pytest.raises(Left):
        followed(signal.SIGINT, stop=lambda: press(signal.SIGQUIT))
    assert codes == [130]
    assert "left in the middle of the stop" in capsys.readouterr().err


def test_quit_detaches_and_does_nothing_afterwards(capsys: pytest.CaptureFixture[str]) -> None:
    assert followed(signal.SIGQUIT) == 0
    press(signal.SIGQUIT)
    assert "detached; " in capsys.readouterr().err


def test_a_repeated_sigterm_is_the_same_one_and_a_later_one_leaves(monkeypatch: pytest.MonkeyPatch) -> None:
    attach.treat_signals_as_ctrl_c()
    assert followed(signal.SIGTERM, stop=lambda: press(signal.SIGTERM)) == 143
    monkeypatch.setattr(interrupts, "REPEAT", 0.0)
    monkeypatch.setattr(os, "_exit", raise_left)
    with pytest.raises(Left, match="143"):
        followed(signal.SIGTERM, stop=lambda: press(signal.SIGTERM))


def test_a_repeated_ctrl_c_leaves_however_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "_exit", raise_left)
    with pytest.raises(Left, match="130"):
        followed(signal.SIGINT, stop=lambda: press(signal.SIGINT))


def test_who_is_notified_hears_of_a_stop_by_ctrl_c() -> None:
    told: list[tuple[str, str]] = []
    record = VerdictRecord(1, RunState.STOPPED, 130, "stopped by Ctrl-C", "gpu00", 0, ("gpu00",))
    notifier = SimpleNamespace(tell=lambda *event: told.append(event))
    assert followed(signal.SIGINT, verdict=Verdict(record=record), notifier=notifier) == 130
    assert told == [("stopped", "stopped by Ctrl-C")]


def test_the_end_of_a_followed_run_is_told_of_its_last_attempt(monkeypatch: pytest.MonkeyPatch) -> None:
    record = VerdictRecord(2, RunState.SUCCEEDED, 0, "succeeded after 1 relaunch", "gpu00", 0, ("gpu00",))
    last, verdict = SimpleNamespace(record=None), Verdict(record=record)
    told: list[object] = []

    def follower(*_: object) -> SimpleNamespace:
        return SimpleNamespace(run=last, follow=lambda _: verdict)

    def end(*words: object) -> int:
        told.extend(words[:2])
        return 0

    monkeypatch.setattr(attach, "Follower", follower)
    monkeypatch.setattr(attach, "RunWatch", lambda *_, **__: contextlib.nullcontext())
    monkeypatch.setattr(attach, "writer", lambda *_: contextlib.nullcontext())
    monkeypatch.setattr(attach, "fold_if_many_ranks", lambda *_: None)
    monkeypatch.setattr(attach, "print_own_end", end)
    run: Any = SimpleNamespace(id="r1", record=RunRecord(hosts=("gpu00",)), spools={}, begun=lambda _: run)
    cluster: Any = SimpleNamespace(inventory=SimpleNamespace(hosts=(), path="i"), join=None)
    progress: Any = SimpleNamespace(show=print, end=lambda: None, watch=lambda _: None)
    notifier: Any = SimpleNamespace(tell=lambda *_: None, record=None)
    display = Display(ranks=None, agents=False, whole=False, fold=None, silence=0)
    code = attach.attach(cluster, run, progress, display, grace=1.0, result=None, notifier=notifier, bundle=False)
    assert (code, told) == (0, [last, verdict])


def shown_after_stop(batches: Callable[[], Iterator[list[Event]]]) -> None:
    """What a run's lines show of a stop: two hosts, of which one answered."""

    def rest(hosts: set[str]) -> Iterator[list[Event]]:
        assert hosts == {"gpu00"}
        return batches()

    nothing: Any = None
    lines: Any = attach._RunLines(nothing, nothing, nothing)
    lines._renderer, lines._follower = TextRenderer(), SimpleNamespace(rest=rest)
    run: Any = SimpleNamespace(id="abcdefghij")
    lines.show_rest(run, [Proof(host="gpu00"), Proof(host="gpu01", error="gpu01: no answer")])


def saved() -> Iterator[list[Event]]:
    part = FilePart(file="0.0.out", start=0, local_rank=0, rank=0, stream="out", offset=0, next=6)
    yield [FrameArrived(host="gpu00", frame=Lines(part=part, body=b"saved\n"))]


def test_lines_printed_while_the_run_is_stopped_are_shown(capfd: pytest.CaptureFixture[str]) -> None:
    shown_after_stop(saved)
    assert capfd.readouterr().out == "[0 gpu00:0] saved\n"


def test_a_reader_who_is_gone_does_not_keep_the_stop_from_being_reported(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    discarded: list[int] = []
    monkeypatch.setattr(attach, "discard", discarded.append)

    def broken() -> Iterator[list[Event]]:
        raise BrokenPipeError

    shown_after_stop(broken)
    assert (discarded, capfd.readouterr().out) == ([STDOUT], "")


def printed_much() -> Iterator[list[Event]]:
    body = b"a line of the job\n" * 10000
    part = FilePart(file="0.0.out", start=0, local_rank=0, rank=0, stream="out", offset=0, next=len(body))
    yield [FrameArrived(host="gpu00", frame=Lines(part=part, body=body))]


def test_a_reader_who_has_paused_is_told_how_to_see_the_rest(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(attach, "PATIENCE", 0.1)
    reading, writing = os.pipe()
    with os.fdopen(reading, "rb"), os.fdopen(writing, "w") as output, monkeypatch.context() as patched:
        patched.setattr(sys, "stdout", output)
        shown_after_stop(printed_much)
    assert capfd.readouterr().err == ("clusterddp: not all lines were shown; `clusterddp logs abcdefghij` shows them\n")


def test_ctrl_c_while_the_rest_is_shown_leaves_the_proofs_and_the_verdict(capfd: pytest.CaptureFixture[str]) -> None:
    def rest(_hosts: set[str]) -> Iterator[list[Event]]:
        press(signal.SIGINT)
        yield []

    nothing: Any = None
    lines: Any = attach._RunLines(nothing, nothing, nothing)
    lines._renderer, lines._follower = TextRenderer(), SimpleNamespace(rest=rest)
    run: Any = SimpleNamespace(
        id="abcdefghij",
        cluster=SimpleNamespace(inventory=SimpleNamespace(pattern="")),
        hosts={"gpu00"},
        record=RunRecord(hosts=("gpu00",)),
        stop=lambda **_: [Proof(host="gpu00", found=3)],
        stopped=lambda _: None,
    )
    assert attach._stop_run(run, 1.0, KeyboardInterrupt(), lines) == 130
    stopping, proof, rest_line = capfd.readouterr().err.splitlines()
    assert "stopping run" in stopping
    assert "abcdefghij: gpu00: " in proof
    assert "`clusterddp logs abcdefghij` shows them" in rest_line
