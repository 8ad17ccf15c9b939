"""A node whose end cannot be recorded, by an error that lasts: it leaves, instead of trying for ever."""

from __future__ import annotations

import errno
import os
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from clusterddp.remote.supervisor import event_loop, file_work, node
from clusterddp.remote.supervisor.event_loop import Loop
from clusterddp.remote.supervisor.file_work import FileWork
from clusterddp.remote.supervisor.node import STUCK_TIMEOUT, Phase, Supervisor

if TYPE_CHECKING:
    import pytest

TURN = 1.0  # seconds of the test's clock


def turns_until_it_leaves(monkeypatch: pytest.MonkeyPatch, failing: set[int]) -> int:
    """How many turns a node clears up in vain; the tries whose numbers are in ``failing`` meet a broken disk."""
    clock, tries = [1000.0], [0]
    for module in (node, event_loop, file_work):
        monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: clock[0], time_ns=lambda: 0))
    one: Any = Supervisor.__new__(Supervisor)
    one.loop, one.work = Loop(lambda *_, **__: None), FileWork(lambda: None)
    one.phase, one.phase_changed = Phase.CLEARING, False

    def write() -> None:
        tries[0] += 1
        if tries[0] in failing:
            raise OSError(errno.EIO, os.strerror(errno.EIO))

    def clear(_: Any) -> Phase:
        one.work.ask("exit record", write)
        return Phase.CLEARING

    monkeypatch.setattr(Supervisor, "_clear", clear)
    monkeypatch.setattr(node, "TURN_INTERVAL", 0.0)
    for turn in range(int(5 * STUCK_TIMEOUT / TURN)):
        begun = tries[0]
        one.turn()
        while one.work.ask("all that was begun", lambda: None) is None:
            pass
        assert tries[0] - begun <= 1
        if one.phase is not Phase.CLEARING:
            return turn
        clock[0] += TURN
    return 0


def test_a_node_whose_exit_record_fails_at_every_try_leaves(monkeypatch: pytest.MonkeyPatch) -> None:
    assert turns_until_it_leaves(monkeypatch, set(range(10_000))) >= STUCK_TIMEOUT / TURN


def test_single_failures_with_successes_between_them_do_not_add_up(monkeypatch: pytest.MonkeyPatch) -> None:
    assert turns_until_it_leaves(monkeypatch, set(range(0, 10_000, 2))) == 0
