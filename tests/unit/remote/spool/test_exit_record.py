"""A node's exit record on a disk that takes no file any more: its supervisor still answers with it."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import pytest

from clusterddp.remote.spool import layout
from clusterddp.remote.spool.layout import Spool
from clusterddp.remote.spool.quoted import keep_secrets
from clusterddp.remote.supervisor.status_operation import describe
from tests.unit.spool_writer import Writer


def break_disk(monkeypatch: pytest.MonkeyPatch, code: int) -> None:
    def fail(*_: Any) -> None:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(layout, "write_json", fail)


@pytest.fixture
def ended(tmp_path: Path) -> Spool:
    """The spool of an attempt that has failed, and another may follow."""
    spool = Spool(str(Writer(tmp_path).folder))
    spool.write_exit("failed", 1, "x", agent_exit=1, survivors=[], pending=True)
    return spool


@pytest.mark.parametrize("code", [errno.EROFS, errno.ENOSPC])
def test_that_no_attempt_follows_is_known_to_the_supervisor_where_it_cannot_be_written(
    ended: Spool, code: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    break_disk(monkeypatch, code)
    ended.make_exit_final("the run was stopped")
    record = ended.exit_record()
    assert record
    assert (record.pending, record.final) == (False, "the run was stopped")


def test_what_may_be_written_in_a_moment_is_tried_again(ended: Spool, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as broken:
        break_disk(broken, errno.EIO)
        with pytest.raises(OSError, match="Input/output error"):
            ended.make_exit_final("the run was stopped")
    ended.make_exit_final("the run was stopped")
    assert [record.final for record in [Spool(ended.folder).exit_record()] if record] == ["the run was stopped"]


@pytest.mark.parametrize("alive", [True, False])
def test_a_supervisor_that_dies_between_two_attempts_leaves_no_secrets_to_stay(ended: Spool, *, alive: bool) -> None:
    keep_secrets(ended.folder, b'{"TOKEN": "hush"}')
    ended.write_control_key(b"of run control")
    if alive:
        assert ended.take_lock()
    asked = Spool(ended.folder)
    describe(asked, asked.plan())
    assert [Path(ended.path(name)).exists() for name in ("secrets.json", "control.key")] == [alive, alive]
    ended.release_lock()
