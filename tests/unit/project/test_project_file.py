"""Projects that are renamed, copied, restored and shown at two places: which are the same, and which are new."""

from __future__ import annotations

import json
import os
import shutil
import threading
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from clusterddp.project.project import Project, find
from clusterddp.remote.shared.run.run_record import RunRecord

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture(autouse=True)
def _state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))


@pytest.fixture
def project(tmp_path: Path) -> Project:
    """A project with an id and one run."""
    (tmp_path / "gpt").mkdir()
    made = find(tmp_path / "gpt", {})
    made.record_run(RunRecord(hosts=("h",), run="a", project=made.id))
    return made


def content(project: Project) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((project.folder / "project.json").read_text())
    return found


def test_a_renamed_project_keeps_its_id_workdir_and_runs(project: Project, tmp_path: Path) -> None:
    before = (project.id, project.label, project.workdir, [record.run for record in project.runs()])
    for name in ("renamed", "again"):
        project.root.rename(tmp_path / name)
        project = find(tmp_path / name, {})
        for _ in ("before", "after"):
            assert (project.id, project.label, project.workdir, [one.run for one in project.runs()]) == before
            assert project.update_location() == ""
        assert content(project)["root"] == str(tmp_path / name)


def test_a_copied_project_gets_an_id_of_its_own_said_once_and_none_of_the_runs(
    project: Project, tmp_path: Path
) -> None:
    whole = (project.folder / "project.json").read_bytes()
    copy = find(shutil.copytree(project.root, tmp_path / "copy"), {})
    assert (copy.known_id, copy.runs(), copy.original) == (None, [], project.root)
    assert copy.update_location() == (
        f"this project is a copy of {project.root} and gets an id of its own now, "
        "so it shares none of its runs and workdirs"
    )
    assert copy.update_location() == ""
    assert copy.known_id not in {None, project.id}
    assert (copy.id, copy.label, copy.runs()) == (copy.known_id, "copy", [])
    assert (copy.folder / f"copied-{project.id}" / "runs.jsonl").is_file()
    assert (project.folder / "project.json").read_bytes() == whole
    assert [record.run for record in project.runs()] == ["a"]
    workdir = copy.workdir
    assert find(copy.root.rename(tmp_path / "moved"), {}).workdir == workdir


def test_a_copys_id_is_made_by_whatever_needs_one_first(project: Project, tmp_path: Path) -> None:
    copy = find(shutil.copytree(project.root, tmp_path / "copy"), {})
    assert copy.id != project.id
    assert copy.id == copy.known_id


def test_two_commands_at_once_in_a_copy_agree_on_its_id(project: Project, tmp_path: Path) -> None:
    copy, gate, found = shutil.copytree(project.root, tmp_path / "copy"), threading.Barrier(8), []

    def ask() -> None:
        gate.wait()
        found.append(find(copy, {}).id)

    threads = [threading.Thread(target=ask) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 8
    assert len({*found, project.id}) == 2


def test_what_is_restored_elsewhere_while_the_original_is_gone_is_the_same_project(
    project: Project, tmp_path: Path
) -> None:
    ident = project.id
    shutil.copytree(project.root, tmp_path / "backup")
    shutil.rmtree(project.root)
    restored = find(tmp_path / "backup", {})
    assert (restored.update_location(), restored.id, restored.label) == ("", ident, "gpt")


def test_what_is_restored_at_its_old_place_is_the_same_project(project: Project, tmp_path: Path) -> None:
    ident = project.id
    shutil.copytree(project.root, tmp_path / "backup")
    shutil.rmtree(project.root)
    (tmp_path / "backup").rename(project.root)
    assert (find(project.root, {}).update_location(), find(project.root, {}).id) == ("", ident)


@pytest.mark.parametrize("there", ["nothing of ours", "another project"])
def test_something_else_at_the_old_place_makes_no_copy_of_a_renamed_project(
    project: Project, tmp_path: Path, there: str
) -> None:
    ident, old = project.id, project.root
    renamed = find(project.root.rename(tmp_path / "renamed"), {})
    old.mkdir()
    if there == "another project":
        assert find(old, {}).id != ident
    assert (renamed.update_location(), renamed.id) == ("", ident)


def test_one_folder_at_two_paths_is_one_project(project: Project, tmp_path: Path) -> None:
    (tmp_path / "mounted").symlink_to(project.root)
    other = replace(project, root=tmp_path / "mounted")  # as by a second mount
    for seen in (other, project, other):
        assert (seen.update_location(), seen.known_id, seen.label) == ("", content(project)["id"], "gpt")


def test_a_project_with_an_id_alone_keeps_the_name_that_it_has_now(project: Project, tmp_path: Path) -> None:
    ident = project.id
    (project.folder / "project.json").write_text(json.dumps({"id": ident}))
    assert (project.update_location(), project.workdir) == ("", f"~/clusterddp/gpt-{ident}")
    assert find(project.root.rename(tmp_path / "renamed"), {}).workdir == f"~/clusterddp/gpt-{ident}"


def test_a_fixed_id_is_shared_on_purpose_and_nothing_is_changed(project: Project, tmp_path: Path) -> None:
    whole = (project.folder / "project.json").read_bytes()
    shutil.copytree(project.root, tmp_path / "copy")
    copy = find(tmp_path / "copy", {"CLUSTERDDP_PROJECT": "ci"})
    assert (copy.update_location(), copy.id, copy.label, copy.original) == ("", "ci", "gpt", None)
    assert (copy.folder / "project.json").read_bytes() == whole


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away")
def test_looking_at_a_copy_of_another_users_changes_nothing_there(project: Project, tmp_path: Path) -> None:
    copy = find(shutil.copytree(project.root, tmp_path / "copy"), {})
    os.chown(copy.folder / "project.json", 4102, 4102)
    whole = (copy.folder / "project.json").read_bytes()
    assert "gets an id of its own once its folder can be written" in copy.update_location()
    assert (copy.known_id, copy.runs()) == (None, [])
    assert (copy.folder / "project.json").read_bytes() == whole


@pytest.mark.parametrize("proof", [None, "", "0" * 64, 7])
def test_a_place_without_the_users_proof_is_not_looked_at(project: Project, tmp_path: Path, proof: object) -> None:
    planted = find(shutil.copytree(project.root, tmp_path / "unpacked"), {})
    (planted.folder / "project.json").write_text(json.dumps({**content(project), "root_proof": proof}))
    assert planted.original is None


def test_without_a_state_folder_a_project_is_made_all_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "file"))
    made = find(tmp_path, {})
    assert made.id == made.known_id
    assert made.update_location() == ""
