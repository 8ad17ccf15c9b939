"""Where what is pulled of a run comes to: whatever name hosts tell of it, below the destination."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import pytest

from clusterddp.api import code_and_commands, copy, find_runs
from clusterddp.api.copy import Pull, _destination, _launcher_of_files, _local_name, _name_of_path, _named_run
from clusterddp.api.copy import pull as pull_files
from clusterddp.api.copy import push as push_files
from clusterddp.errors import SyncError, UsageError
from clusterddp.inventory import HostEntry, Inventory
from clusterddp.remote.shared.user_files.file_records import UNREADABLE
from clusterddp.runs.view.run_view import run_views
from clusterddp.sync.transfer.fetch import Listing
from tests.unit.runs_told import Told

if TYPE_CHECKING:
    from pathlib import Path

    from clusterddp.inventory.variables.variable_table import Role
    from clusterddp.runs.run_on_hosts import Site

NOTHING = Listing(exists=True, folder=True, root="", shared=None, entries=(), chunks={}, skipped=(), others=())


@pytest.mark.parametrize(
    ("name", "folder"),
    [
        ("night run", "night run"), (None, "r1"), ("../../home/me/.ssh", "r1"), ("/etc", "r1"), ("..", "r1"),
        (".git", "r1"), ("a/b", "r1"), ("\ud800", "r1"),
    ],
)  # fmt: skip
def test_a_folder_has_the_runs_name_unless_that_leads_elsewhere(name: str | None, folder: str) -> None:
    (view,) = run_views([Told(run="r1", name=name).node], ())
    assert _local_name(view) == folder


@pytest.mark.parametrize(("role", "launcher"), [("login", "slurm"), ("node", "ssh"), ("spare", "ssh")])
def test_a_path_is_looked_for_by_the_launcher_that_needs_no_more_than_these_hosts(role: Role, launcher: str) -> None:
    site = SimpleNamespace(
        inventory=Inventory(path=None, hosts=(HostEntry(name="login01", address="login01", role=role),), groups={})
    )
    assert _launcher_of_files(cast("Site", site), None).name == launcher


@pytest.mark.parametrize(
    ("word", "names"), [("exp/lr1", True), ("exp/lr2", False), ("exp/lr1/", False), ("./exp/lr1", False)]
)
def test_a_word_with_a_slash_is_a_run_if_that_is_its_name(
    monkeypatch: pytest.MonkeyPatch, word: str, *, names: bool
) -> None:
    views = run_views([Told(run="r1", name="exp/lr1").node], ())
    monkeypatch.setattr(find_runs, "list_runs", lambda *_: views)
    site: Any = SimpleNamespace(project=SimpleNamespace(workdir="w"), connect=lambda _: [])
    assert _named_run(Pull(what=word), site, ()) == (views[0] if names else None)


@pytest.mark.parametrize("request_", [Pull(what=""), Pull(what="ckpt", dest=""), Pull(run="r1", dest="")])
def test_an_empty_word_of_a_pull_is_refused(request_: Pull) -> None:
    with pytest.raises(UsageError, match=r"^a path is an empty word"):
        pull_files(request_, cast("Site", None))


@pytest.mark.parametrize(("source", "to"), [("", None), ("a", "")])
def test_an_empty_word_of_a_push_is_refused(source: str, to: str | None) -> None:
    site: Any = SimpleNamespace(project=None, notify=None, progress=None)
    with pytest.raises(UsageError, match=r"^a path is an empty word"):
        push_files(site, [source], to, overwrite=False, rate=None, spread="auto")


def test_what_cannot_be_read_on_the_host_that_has_it_is_pushed_nowhere(monkeypatch: pytest.MonkeyPatch) -> None:
    found = replace(NOTHING, root="/w/out", skipped=(("fifo", "neither files nor links"), ("a", f"{UNREADABLE} (why)")))
    monkeypatch.setattr(copy, "list_host", lambda *_, **__: found)
    host: Any = SimpleNamespace(name="gpu00", entry=SimpleNamespace(workdir="/w"))
    monkeypatch.setattr(code_and_commands, "reached", lambda _: [host])
    site: Any = SimpleNamespace(project=None, notify=print, progress=print)
    with pytest.raises(SyncError, match=r"^gpu00:/w/out/a: cannot be read \(why\); make it readable, or leave it out$"):
        push_files(site, ["gpu00:out"], None, overwrite=False, rate=None, spread="auto")


@pytest.mark.parametrize("path", ["~", "~/"])
def test_the_home_folder_has_no_name_here(tmp_path: Path, path: str) -> None:
    for dest in (str(tmp_path), f"{tmp_path}/"):
        assert _destination(Pull(what=path, dest=dest), _name_of_path(path), folder=True) == (tmp_path, "")


@pytest.mark.parametrize("path", ["/scratch/x/..", "/scratch/x/../", ".."])
def test_a_path_whose_name_leads_out_of_the_destination_is_refused(path: str) -> None:
    with pytest.raises(UsageError, match="has no name of its own"):
        _name_of_path(path)
