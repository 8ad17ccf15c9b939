"""The connections of a command: who is dialled again, what is told once, and how they end."""

from __future__ import annotations

import os
import threading
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from clusterddp.errors import (
    AuthenticationError,
    ClusterddpError,
    HelperError,
    HostError,
    HostKeyError,
    UnreachableError,
    UsageError,
)
from clusterddp.hosts import connections
from clusterddp.hosts.connections import Connections
from clusterddp.hosts.fanout import values
from clusterddp.inventory import HostEntry

if TYPE_CHECKING:
    from clusterddp.hosts.via_job_step import Opener

GPU00 = HostEntry(name="gpu00", address="gpu00")


def test_hosts_that_come_during_the_end_do_not_disturb_it(monkeypatch: pytest.MonkeyPatch) -> None:
    ended: list[str] = []

    def open_host(entry: HostEntry, _opener: object) -> Any:
        def close() -> None:
            if entry.name == "gpu00":  # as a thread that was connecting at a Ctrl-C
                late = threading.Thread(target=opened.open, args=(HostEntry(name="gpu02", address="gpu02"),))
                late.start()
                late.join(10)
            ended.append(entry.name)

        return SimpleNamespace(name=entry.name, noise="", unwritable=None, lost=False, close=close)

    monkeypatch.setattr(connections, "Host", SimpleNamespace(open=open_host))
    opened = Connections(SimpleNamespace(close=lambda: ended.append("all")), print)  # type: ignore[arg-type]
    for name in ("gpu00", "gpu01"):
        opened.open(HostEntry(name=name, address=name))
    opened.close()
    assert ended == ["gpu00", "gpu01", "all"]  # the connector ends what comes late


class Doors:
    """Takes the place of ``Host`` and of the connector: each login is answered by the next error, or lets in."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *answers: ClusterddpError | None) -> None:
        self.answers, self.asked = list(answers), []  # type: ignore[var-annotated]
        self.now, self.dial_time = 100.0, 0.0
        monkeypatch.setattr(connections, "time", SimpleNamespace(monotonic=lambda: self.now))
        monkeypatch.setattr(connections, "Host", SimpleNamespace(open=self.open_host))
        self.connections = Connections(SimpleNamespace(open=self.log_in), print)  # type: ignore[arg-type]

    def open_host(self, entry: HostEntry, opener: Opener) -> Any:
        opener.open(entry, "")
        return SimpleNamespace(name=entry.name, noise="", unwritable=None, lost=True, close=lambda: None)

    def log_in(self, _entry: HostEntry, _command: str, *, asks: bool = True) -> None:
        self.asked.append(asks)
        self.now += self.dial_time
        if error := self.answers.pop(0):
            raise error


@pytest.mark.parametrize(
    "error",
    [AuthenticationError("gpu00", "refused your key", remedy="unlock it"), HelperError("gpu00", "it did not start")],
)
def test_a_host_that_has_let_us_in_and_refuses_for_a_while_does_not_answer(
    monkeypatch: pytest.MonkeyPatch, error: ClusterddpError
) -> None:
    doors = Doors(monkeypatch, error, None, error, error, None)
    with pytest.raises(type(error)):
        doors.connections.open(GPU00)
    doors.connections.open(GPU00)
    for _ in range(2):
        with pytest.raises(UnreachableError) as caught:
            doors.connections.open(GPU00)
        assert (caught.value.message, caught.value.remedy) == (error.message, error.remedy)
    doors.connections.open(GPU00)
    assert doors.asked == [True, True, False, False, False]  # nobody is asked in the middle of work


def test_another_host_key_is_no_loss_and_another_way_may_ask(monkeypatch: pytest.MonkeyPatch) -> None:
    doors = Doors(monkeypatch, None, HostKeyError("gpu00", "has changed"), None, AuthenticationError("gpu00", "no"))
    doors.connections.open(GPU00)
    with pytest.raises(HostKeyError):
        doors.connections.open(GPU00)
    by: Any = SimpleNamespace(open=doors.log_in)
    doors.connections.open(GPU00, by, way="7")
    with pytest.raises(AuthenticationError):
        doors.connections.open(GPU00, by, way="7")
    assert doors.asked == [True, False, True, True]


def test_a_host_that_did_not_answer_is_dialled_again_after_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    """The looks of one command follow each other at once, and each dial would take the whole timeout."""
    silent = UnreachableError("gpu00", "no answer from 10.0.0.1:22 within 10 s", remedy="start it")
    doors = Doors(monkeypatch, silent, None)
    doors.dial_time = connections.LONG_DIAL
    for _ in range(3):
        with pytest.raises(UnreachableError) as caught:
            doors.connections.open(GPU00)
        assert (caught.value.message, caught.value.remedy) == (silent.message, "start it")
        caught.value.remedy = "go on without it"  # as a command adds for its user
    assert doors.asked == [True]
    doors.now += connections.RETRY_INTERVAL
    doors.connections.open(GPU00)
    assert doors.asked == [True, True]


def test_a_dial_that_fails_at_once_may_be_repeated_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    doors = Doors(monkeypatch, UnreachableError("gpu00", "no route to host", remedy="wait"), None)
    with pytest.raises(UnreachableError):
        doors.connections.open(GPU00)
    doors.connections.open(GPU00)
    assert doors.asked == [True, True]


def test_an_error_that_is_met_again_is_told_once() -> None:
    told: list[str] = []
    opened = Connections(SimpleNamespace(), told.append)  # type: ignore[arg-type]
    for line in ("gpu00: no answer", "gpu01: no answer", "gpu00: no answer"):
        opened.report(line)
    assert told == ["gpu00: no answer", "gpu01: no answer"]


class Losses:
    """Takes the place of ``Host``: all are lost at first; the next are opened, or not, once several threads ask."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, error: HostError | None = None) -> None:
        self.error, self.dials = error, 0
        self.closed: list[str] = []
        self.may_end = threading.Event()
        monkeypatch.setattr(connections, "LONG_DIAL", 0.0)
        monkeypatch.setattr(connections, "Host", SimpleNamespace(open=self.open_host))
        self.connections = Connections(SimpleNamespace(), print)  # type: ignore[arg-type]
        self.connections.open(GPU00)

    def open_host(self, entry: HostEntry, _opener: object) -> Any:
        number, self.dials = self.dials, self.dials + 1
        if number:
            assert self.closed == ["0"]  # a lost one is ended before the next is opened
            assert self.may_end.wait(10)
            if self.error:
                raise self.error
        close = partial(self.closed.append, str(number))
        return SimpleNamespace(name=entry.name, noise="", unwritable=None, lost=not number, close=close)

    def ask(self) -> object:
        try:
            return self.connections.open(GPU00)
        except UnreachableError as error:
            return error.message

    def ask_by_threads(self, count: int) -> list[Any]:
        """What so many threads get that ask while the first is dialling."""
        waiting = threading.Semaphore(0)
        opening = self.connections._opening["gpu00 "]

        class Watched:
            def __enter__(self) -> None:
                waiting.release()
                opening.acquire()

            def __exit__(self, *_: object) -> None:
                opening.release()

        self.connections._opening["gpu00 "] = Watched()  # type: ignore[assignment]
        with ThreadPoolExecutor(count) as pool:
            asked = [pool.submit(self.ask) for _ in range(count)]
            for _ in asked:
                assert waiting.acquire(timeout=10)
            self.may_end.set()
            return [one.result(10) for one in asked]


def test_a_lost_host_is_ended_and_opened_anew_once_for_all_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    losses = Losses(monkeypatch)
    first, *others = losses.ask_by_threads(6)
    assert all(host is first for host in others)
    assert (losses.dials, losses.closed) == (2, ["0"])


@pytest.mark.parametrize("kind", [UnreachableError, AuthenticationError, HelperError])
def test_threads_that_wait_for_a_lost_host_share_its_error(
    monkeypatch: pytest.MonkeyPatch, kind: type[HostError]
) -> None:
    """One after the other they would wait for as many time limits."""
    losses = Losses(monkeypatch, kind("gpu00", "no answer"))
    assert losses.ask_by_threads(6) == ["gpu00: no answer"] * 6
    assert losses.dials == 2
    losses.closed, losses.error = ["0"], None
    assert losses.ask() is not None  # who asks later has it dialled again
    assert losses.dials == 3


def test_connections_that_were_closed_are_no_hosts_that_do_not_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    opened = Connections(SimpleNamespace(close=lambda: None, notices=[]), print)  # type: ignore[arg-type]
    monkeypatch.setattr(connections, "Host", None)
    opened.close()
    outcomes = opened.open_all([GPU00, HostEntry(name="gpu01", address="gpu01")], lambda _: None)
    with pytest.raises(UsageError, match="this Cluster is closed; use it, and its runs, inside its with-block"):
        values(outcomes)


def test_a_fork_neither_uses_nor_ends_the_connections_of_the_process_that_opened_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Two processes that read from one connection take each other's answers."""
    ended: list[str] = []
    host: Any = SimpleNamespace(
        name="gpu00", noise="", unwritable=None, lost=False, close=lambda: ended.append("gpu00")
    )
    monkeypatch.setattr(connections, "Host", SimpleNamespace(open=lambda *_: host))
    opened, unused = (
        Connections(SimpleNamespace(close=lambda: ended.append("all"), notices=[]), print)  # type: ignore[arg-type]
        for _ in range(2)
    )
    assert opened.open(GPU00) is host
    with monkeypatch.context() as fork:
        fork.setattr(os, "getpid", lambda: -1)
        outcomes = opened.open_all([GPU00], lambda _: None)
        with pytest.raises(UsageError, match="is a fork of; make a Cluster in each process"):
            values(outcomes)
        opened.close_hosts()
        assert unused.open(GPU00) is host
    assert (ended, opened.hosts) == ([], [host])
    opened.close()
    assert ended == ["gpu00", "all"]
