"""Consent to an inventory: what proves it, what it covers, and what is said where the user's key cannot be used."""

from __future__ import annotations

import json
import os
import shutil
import stat
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from clusterddp.errors import UsageError
from clusterddp.project.consent import KEY, Writers, ensure_key, load_key, read_consent, state_folder
from clusterddp.project.project import find

if TYPE_CHECKING:
    from clusterddp.project.project import Project


@pytest.fixture(autouse=True)
def _home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "home").mkdir()
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.delenv("XDG_STATE_HOME", raising=False)


@pytest.fixture
def project(tmp_path: Path) -> Project:
    """A project whose inventory, in its folder, was given to `up`."""
    folder = tmp_path / "project"
    folder.mkdir()
    (folder / "hosts.yaml").write_text("all: {hosts: {a: }}\n")
    made = find(folder, {})
    made.remember(folder / "hosts.yaml", "a*")
    return made


def changed(project: Project, **values: Any) -> Project:
    path = project.folder / "project.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **values}))
    return project


def test_the_key_is_private_from_its_creation_and_made_once(tmp_path: Path) -> None:
    assert load_key() is None
    gate, keys = threading.Barrier(8), []

    def make() -> None:
        gate.wait()
        keys.append(ensure_key())

    threads = [threading.Thread(target=make) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (len(keys), len({*keys}), load_key()) == (8, 1, keys[0])
    folder = tmp_path / "home" / ".local" / "state" / "clusterddp"
    assert [path.name for path in folder.iterdir()] == [KEY]
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert stat.S_IMODE((folder / KEY).stat().st_mode) == 0o600


def test_the_state_folder_follows_xdg_where_that_is_a_whole_path(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "xdg"))
    assert state_folder() == tmp_path / "xdg" / "clusterddp"
    monkeypatch.setenv("XDG_STATE_HOME", "relative")
    assert state_folder() == tmp_path / "home" / ".local" / "state" / "clusterddp"


def test_what_up_was_given_is_believed_by_the_same_user_alone(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = project.remembered
    assert (kept.inventory, kept.limit) == (project.root / "hosts.yaml", "a*")
    assert kept.writers == Writers(owner=os.geteuid())
    monkeypatch.setenv("XDG_STATE_HOME", str(project.root / "another user's"))
    assert project.remembered.inventory is None
    ensure_key()
    assert project.remembered.inventory is None


@pytest.mark.parametrize(
    "values",
    [
        {"inventory": "/elsewhere.yaml"}, {"limit": "b"}, {"limit": None}, {"id": "0123456789"}, {"consent": None},
        {"consent": {}}, {"consent": 7}, {"consent": {"proof": "0" * 64}},
    ],
    ids=str,
)  # fmt: skip
def test_a_path_a_limit_or_an_id_that_was_changed_is_not_believed(project: Project, values: dict[str, Any]) -> None:
    assert changed(project, **values).remembered.inventory is None
    assert project.unproved.inventory is not None


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("owner", 4102), ("owner", True), ("group", 0), ("group", "0"), ("everyone", True), ("everyone", 1),
        ("root", "/"), ("inode", 7), ("proof", ""), ("proof", "é" * 64), ("proof", None),
    ],
)  # fmt: skip
def test_consent_covers_who_may_write_and_where_the_project_lies(project: Project, key: str, value: object) -> None:
    consent = json.loads((project.folder / "project.json").read_text())["consent"]
    assert read_consent(consent) is not None
    assert changed(project, consent={**consent, key: value}).remembered.inventory is None


def test_a_project_that_was_renamed_goes_on_with_the_inventory_in_it(project: Project, tmp_path: Path) -> None:
    project.root.rename(tmp_path / "renamed")
    assert find(tmp_path / "renamed", {}).remembered.inventory == tmp_path / "renamed" / "hosts.yaml"


def test_a_copy_of_a_project_asks_for_consent_to_its_own_inventory(project: Project, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(project.root, copy)
    for _ in ("before it has an id of its own", "since"):
        found = find(copy, {})
        assert found.remembered.inventory is None
        assert (found.unproved.inventory, found.unproved.limit) == (copy / "hosts.yaml", "a*")
        found.update_location()
    assert project.remembered.inventory == project.root / "hosts.yaml"


def test_a_renamed_project_that_knows_its_new_place_keeps_what_was_agreed(project: Project, tmp_path: Path) -> None:
    renamed = project.root.rename(tmp_path / "renamed")
    assert find(renamed, {}).update_location() == ""
    assert find(renamed, {}).remembered.inventory == renamed / "hosts.yaml"


def test_an_inventory_elsewhere_stays_where_it_is_when_the_project_is_renamed(project: Project, tmp_path: Path) -> None:
    project.remember(tmp_path / "shared.yaml", None)
    project.root.rename(tmp_path / "renamed")
    assert find(tmp_path / "renamed", {}).remembered.inventory == tmp_path / "shared.yaml"


def test_a_fixed_id_changes_nothing_of_what_was_agreed(project: Project) -> None:
    assert find(project.root, {"CLUSTERDDP_PROJECT": "ci"}).remembered.inventory == project.root / "hosts.yaml"


def test_an_attempt_of_up_that_another_has_written_down_is_none(project: Project) -> None:
    project.remember_attempt(project.root / "next.yaml")
    assert project.attempted_inventory == project.root / "next.yaml"
    assert changed(project, tried="/elsewhere.yaml").attempted_inventory is None


def instead(path: Path, make: Any) -> None:
    """Put something else in a file's or folder's place."""
    shutil.rmtree(path) if path.is_dir() else path.unlink()
    make(path)


@pytest.mark.parametrize(
    ("harm", "words"),
    [
        (lambda folder: (folder / KEY).write_bytes(b"short"), "is damaged; remove it"),
        (lambda folder: (folder / KEY).chmod(0o640), "is open to other users (0640); `chmod go= "),
        (lambda folder: folder.chmod(0o755), "is open to other users (0755); `chmod go= "),
        (lambda folder: instead(folder / KEY, lambda path: os.mkfifo(path, 0o600)), "is damaged"),
        (lambda folder: (folder / KEY).rename(folder / "k") and (folder / KEY).symlink_to("k"), "cannot be read"),
        (lambda folder: instead(folder, Path.touch), "your state folder cannot be read (Not a dir"),
    ],
)
def test_a_key_that_is_not_the_users_alone_is_said_in_a_line(project: Project, harm: Any, words: str) -> None:
    harm(state_folder())
    with pytest.raises(UsageError) as said:
        _ = project.remembered
    assert words in str(said.value)
    assert str(state_folder()) in str(said.value)


def test_a_state_folder_that_cannot_be_made_is_said_with_the_remedy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "home" / ".local").write_text("a file in the way")
    with pytest.raises(UsageError, match=r"cannot be .* \(Not a directory\); .*XDG_STATE_HOME .*`-i FILE` needs none"):
        ensure_key()
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "elsewhere"))
    assert len(ensure_key()) == 32


def test_a_group_of_ones_own_is_nobody_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "file"
    path.touch()
    path.chmod(0o664)
    assert Writers.of(path.stat()).group in {None, path.stat().st_gid}
    monkeypatch.setattr("clusterddp.project.consent._is_private_group", lambda _gid, _uid: False)
    assert Writers.of(path.stat()) == Writers(owner=os.geteuid(), group=path.stat().st_gid)
    assert Writers(owner=os.geteuid()).objection(path.stat()).startswith("can be written by the group ")
    path.chmod(0o646)
    assert Writers(owner=os.geteuid()).objection(path.stat()) == "can be written by everyone"
    assert not Writers(owner=os.geteuid(), everyone=True).objection(path.stat())
