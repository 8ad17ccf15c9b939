"""Files in its spool that a supervisor reads: the lease."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from clusterddp.remote.shared.run.spool_records import Ready
from clusterddp.remote.spool.layout import LEASE, Spool
from clusterddp.remote.supervisor import inbox
from clusterddp.remote.supervisor.inbox import Inbox

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def spool(tmp_path: Path) -> Spool:
    return Spool(str(tmp_path))


def test_a_renewal_counts_by_this_hosts_clock_when_it_is_first_seen(
    spool: Spool, monkeypatch: pytest.MonkeyPatch
) -> None:
    times = iter([100.0, 130.0])
    monkeypatch.setattr(inbox, "boot_clock", lambda: next(times))
    box = Inbox(spool, leased=True)
    read = box.readers(lambda: None)["lease file"]
    read()
    assert box.lease == 0.0
    for expected in (100.0, 130.0):
        spool.renew_lease()  # under Slurm the login host does it, whose boot clock is another
        read()
        read()
        assert box.lease == expected


@pytest.mark.parametrize("content", [7.5, None, ["x"], {}])
def test_what_is_no_token_is_no_renewal(spool: Spool, tmp_path: Path, content: object) -> None:
    (tmp_path / LEASE).write_text(json.dumps(content))
    box = Inbox(spool, leased=True)
    box.readers(lambda: None)["lease file"]()
    assert box.lease == 0.0


def test_a_run_that_outlives_its_terminal_reads_no_lease(spool: Spool) -> None:
    box = Inbox(spool, leased=False)
    spool.renew_lease()
    box.readers(lambda: None)["lease file"]()
    assert box.lease == 0.0


@pytest.mark.parametrize("leased", [True, False])
def test_the_operators_word_that_all_are_ready_renews_the_lease_once(
    spool: Spool, monkeypatch: pytest.MonkeyPatch, *, leased: bool
) -> None:
    monkeypatch.setattr(inbox, "boot_clock", iter([100.0, 130.0]).__next__)
    box = Inbox(spool, leased=leased)
    read = box.readers(lambda: None)["readiness"]
    read()
    assert box.lease == 0.0
    spool.write_committed(Ready())
    read()
    read()
    assert (box.ready, box.lease) == (Ready(), 100.0 if leased else 0.0)
