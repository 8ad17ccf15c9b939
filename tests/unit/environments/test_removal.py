"""Which environments `down --environments` keeps, by who made and who used them."""

from __future__ import annotations

import os
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from clusterddp.environments.removal import UNUSED_TIME, list_environments
from clusterddp.hosts.fanout import HostGroup
from clusterddp.inventory import HostEntry
from clusterddp.remote.environment.folders import BuiltEnvironment, EnvironmentStore
from clusterddp.remote.environment.removal import environments
from clusterddp.remote.helper.request import Request
from clusterddp.remote.spool.layout import Spool
from tests.unit.plan_made import PLAN, made_spool

IDENT = "a" * 64
USED_LAST = "this project used it last; --purge --environments removes it too"
LONG_AGO = time.time_ns() - 2 * UNUSED_TIME


def built(state: Path, project: str, at: int = LONG_AGO) -> EnvironmentStore:
    """An environment that a project has made."""
    store = EnvironmentStore(str(state))
    store.make()
    python = Path(store.python(IDENT))
    python.parent.mkdir(parents=True)
    python.touch(mode=0o700)
    store.complete(IDENT, BuiltEnvironment(digest="d", lock="uv.lock", built=at, project=project))
    return store


def used(store: EnvironmentStore, project: str, at: int | None = None) -> None:
    """A run of a project begins in the environment."""
    state = os.path.dirname(store.folder)  # noqa: PTH120 - as the store has it
    plan = PLAN._replace(run=f"run{project}", python=store.python(IDENT), record=PLAN.record._replace(project=project))
    spool = Spool.of(state, plan.run, plan.attempt, plan.node)
    assert made_spool(spool, plan)
    if at is not None:
        os.utime(spool.folder, ns=(at, at))


def why_it_stays(state: Path, project: str, *, last_too: bool = False) -> str:
    def call(*_: object, **__: object) -> Any:
        return environments(Request(0, {"state": str(state)}, -1, -1))

    host: Any = SimpleNamespace(name="gpu00", call=call)
    group = HostGroup([HostEntry(name="gpu00", address="127.0.0.1")], lambda _: host)
    notices: list[str] = []
    (found,) = list_environments(group, project, time.time_ns(), notices.append, last_too=last_too)
    assert not notices
    return found.stays


@pytest.mark.parametrize("last_too", [False, True])
def test_an_environment_that_another_project_uses_stays_whoever_made_it(tmp_path: Path, *, last_too: bool) -> None:
    store = built(tmp_path, "ours")
    assert why_it_stays(tmp_path, "ours", last_too=True) == ""
    used(store, "theirs")
    reason = why_it_stays(tmp_path, "ours", last_too=last_too)
    assert reason == ("another project's" if last_too else USED_LAST)
    assert why_it_stays(tmp_path, "another") == "another project's"


def test_an_environment_stays_for_who_used_it_last_not_for_who_made_it(tmp_path: Path) -> None:
    store = built(tmp_path, "theirs")
    assert why_it_stays(tmp_path, "ours") == ""
    used(store, "ours", LONG_AGO + 1)
    assert why_it_stays(tmp_path, "ours") == USED_LAST
    assert why_it_stays(tmp_path, "ours", last_too=True) == ""


def test_an_environment_that_cannot_be_used_stays_for_nobody(tmp_path: Path) -> None:
    store = built(tmp_path, "theirs", time.time_ns())
    used(store, "theirs")
    assert why_it_stays(tmp_path, "ours") == "another project's"
    Path(store.python(IDENT)).unlink()
    assert why_it_stays(tmp_path, "ours") == ""
