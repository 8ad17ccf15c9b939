"""A followed run that Ctrl-C or Ctrl-\\ ends or leaves: its exit code, and the signals meanwhile."""

from __future__ import annotations

import os
import signal
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from clusterddp.cli import attach
from clusterddp.errors import UnreachableError
from clusterddp.remote.shared.run.run_record import RunRecord
from clusterddp.runs.proof import Proof

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path


@pytest.fixture(autouse=True)
def _signals() -> Iterator[None]:
    """The handlers as they were, once the test is over."""
    numbers = (signal.SIGQUIT, signal.SIGTERM)
    before = [signal.getsignal(number) for number in numbers]
    yield
    for number, handler in zip(numbers, before, strict=True):
        signal.signal(number, handler)


class Left(Exception):
    """The process ends in the middle of the stop."""


def press(number: signal.Signals) -> None:
    """Send this process a signal, as a key of the terminal does."""
    os.kill(os.getpid(), number)


def followed(first: signal.Signals, *, stop: Callable[[], None] = lambda: None, result: Path | None = None) -> int:
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
        stopped=lambda _: None,
        status=no_answer,
    )
    progress: Any = SimpleNamespace(show=print, end=lambda: None, watch=print)
    nothing: Any = None
    return attach.attach(nothing, run, progress, nothing, grace=1.0, result=result, notifier=nothing, bundle=False)


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
