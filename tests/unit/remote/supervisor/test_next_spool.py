"""A node's spool of the next attempt: made anew, with all that it needs, where a full disk interrupted it."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from clusterddp.hosts.zipapp import bundle
from clusterddp.remote.control.messages import AttemptDecision, EndOrder
from clusterddp.remote.shared.run.plan import FORK_SOCKET
from clusterddp.remote.spool import supervisor_identity
from clusterddp.remote.spool.creation import create_spool
from clusterddp.remote.spool.layout import Spool
from clusterddp.remote.spool.quoted import keep_secrets
from clusterddp.remote.spool.supervisor_identity import clock_step
from clusterddp.remote.supervisor import relaunch
from clusterddp.remote.supervisor.relaunch import NoAttempt, Relaunching
from clusterddp.remote.supervisor.shutdown import Shutdown
from clusterddp.remote.system.clock import boot_clock, boot_time
from tests.unit.plan_made import PLAN, changed

if TYPE_CHECKING:
    from collections.abc import Callable


@pytest.fixture
def old(tmp_path: Path) -> Spool:
    """The spool of an attempt that has failed, with secrets and a fork server's socket."""
    plan = changed(PLAN, relaunch=3, store=None)
    spool = Spool.of(str(tmp_path / "state"), plan.run, 1, plan.node)
    (tmp_path / "state").mkdir(0o700)
    code = tmp_path / "remote.pyz"
    code.write_bytes(bundle().code)
    with code.open("rb") as file:
        assert create_spool(spool, plan, file.fileno())
    spool.take_lock()
    spool.write_control_key(b"key")
    keep_secrets(spool.folder, b'{"TOKEN": "verysecret"}')
    Path(spool.path(FORK_SOCKET)).touch()
    spool.write_exit("failed", 1, "x", agent_exit=1, survivors=[], pending=True)
    return spool


def next_attempt(old: Spool, monkeypatch: pytest.MonkeyPatch) -> tuple[Callable[[], Any], list[Any]]:
    """What makes the next attempt, and the work that it has others do."""
    monkeypatch.setattr(relaunch, "Attempt", lambda spool, *_: SimpleNamespace(spool=spool, plan=spool.plan()))
    children = SimpleNamespace(environment={})
    node: Any = SimpleNamespace(
        spool=old, plan=old.plan(), inbox=SimpleNamespace(ready=None), children=children, context=None
    )
    given: list[Any] = [SimpleNamespace(), SimpleNamespace(), SimpleNamespace(), None]
    asked: list[Any] = []
    one = Relaunching(*given)
    one.work = immediate(asked)
    return (lambda: one._begin(node, AttemptDecision(2, (0,), 0, 29500))), asked


def immediate(later: list[Any]) -> Any:
    """File work that does at once what is asked for; the rest goes to ``later``."""

    def ask(_: str, work: Any) -> Any:
        return SimpleNamespace(value=work())

    return SimpleNamespace(ask=ask, do=later.append, is_asked=lambda _: False, forget=lambda _: None)


def test_the_next_attempt_has_the_clocks_offset_as_it_is_when_it_begins(
    old: Spool, monkeypatch: pytest.MonkeyPatch
) -> None:
    hour, before = 3600 * 10**9, old.plan().clock_offset_ns
    booted = boot_time()
    monkeypatch.setattr(supervisor_identity, "boot_time", lambda: booted)
    old.write_supervisor()
    monkeypatch.setattr(supervisor_identity, "boot_time", lambda: booted + hour)
    begin, _ = next_attempt(old, monkeypatch)
    spool = begin().spool
    assert spool.plan().clock_offset_ns == before + hour
    assert clock_step(spool.recorded_supervisor()) == 0  # its own supervisor began by the clock as it is now


def test_what_a_full_disk_interrupted_is_made_anew_with_secrets_and_fork_server(
    old: Spool, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_final, full = Spool.make_exit_final, [True]

    def fail_once(spool: Spool, reason: str) -> None:
        if full and full.pop():
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        make_final(spool, reason)

    monkeypatch.setattr(Spool, "make_exit_final", fail_once)
    begin, asked = next_attempt(old, monkeypatch)
    with pytest.raises(OSError, match="No space left"):
        begin()
    attempt = begin()  # there is room again
    assert attempt
    assert attempt.spool.secrets() == {"TOKEN": "verysecret"}
    assert attempt.spool.control_key() == b"key"
    assert Path(attempt.spool.path(FORK_SOCKET)).exists()
    for work in asked:
        work()
    assert old.secrets() == {}
    assert [record.final for record in [old.exit_record()] if record] == ["attempt 2"]


def test_a_stop_while_a_full_disk_holds_the_next_attempt_up_ends_the_run_and_leaves_nothing_of_it(
    old: Spool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_: Spool) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(Spool, "write_supervisor", fail)
    children = SimpleNamespace(environment={}, end_fork_server=lambda **_: None)
    node: Any = SimpleNamespace(
        spool=old,
        plan=old.plan(),
        member=0,
        children=children,
        shutdown=Shutdown(),
        inbox=SimpleNamespace(ready=None),
    )
    control = SimpleNamespace(leading=False, last_contact=boot_clock())
    limits = SimpleNamespace(lost=7.25)
    conditions: Any = SimpleNamespace(
        limits=limits,
        outlived=lambda: False,
        leaves_alone=lambda: False,
        decided_at=None,
        fence=SimpleNamespace(has_ended=False),
    )
    one = Relaunching(control, SimpleNamespace(decision=None), conditions, immediate([]))  # type: ignore[arg-type]
    one.preparing = AttemptDecision(2, (0,), 0, 29500)
    with pytest.raises(OSError, match="No space left"):
        one.step(node, None)
    assert one.step(node, EndOrder("stop", 10.0, ours=False)) == NoAttempt("stop")
    assert [record.final for record in [old.exit_record()] if record] == ["stop"]
    assert not list(Path(old.state).glob("runs/*/2/*"))
