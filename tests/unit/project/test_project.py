from __future__ import annotations

import pwd
import resource
import stat
import threading
from pathlib import Path

import pytest

from clusterddp.errors import UsageError
from clusterddp.project.project import find, short_path
from clusterddp.project.project_folder import UnwritableError
from clusterddp.remote.shared.run.run_record import RunRecord


def test_the_project_is_the_nearest_ancestor_with_git_folder_or_file(tmp_path: Path) -> None:
    (tmp_path / ".git").mkdir()
    inner = tmp_path / "inner"
    (inner / "a" / "b").mkdir(parents=True)
    assert find(inner / "a", {}).root == tmp_path
    (inner / ".git").write_text("gitdir: elsewhere")
    found = find(inner / "a" / "b", {})
    assert (found.root, found.subfolder) == (inner, "a/b")


def test_a_folder_with_project_json_is_a_project_and_one_with_host_state_is_none(tmp_path: Path) -> None:
    (tmp_path / "deep").mkdir()
    (tmp_path / ".clusterddp").mkdir()
    assert find(tmp_path / "deep", {}).root == tmp_path / "deep"
    (tmp_path / ".clusterddp" / "project.json").write_text("{}")
    assert find(tmp_path / "deep", {}).root == tmp_path


def test_finding_a_project_makes_nothing(tmp_path: Path) -> None:
    project = find(tmp_path, {})
    assert project.runs() == []
    assert project.remembered.inventory is None
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "text",
    ["{", "[" * 100_000, "1", '{"id": "../x"}', '{"id": "x", "label": "../x"}', '{"id": "x", "root": 1}'],
    ids=range(6),
)
def test_a_damaged_id_is_told_in_a_line(tmp_path: Path, text: str) -> None:
    (tmp_path / ".clusterddp").mkdir()
    (tmp_path / ".clusterddp" / "project.json").write_text(text)
    with pytest.raises(
        UsageError, match=r"project\.json: (cannot be read|holds something else).*; remove it or mend it"
    ):
        _ = find(tmp_path, {}).id


def test_the_id_is_made_once_and_ignored_by_git_and_private(tmp_path: Path) -> None:
    project = find(tmp_path, {})
    assert project.id == project.id == find(tmp_path, {}).id
    assert len(bytes.fromhex(project.id)) * 8 >= 40
    assert (project.folder / ".gitignore").read_text() == "*\n"
    assert stat.S_IMODE(project.folder.stat().st_mode) == 0o700
    assert stat.S_IMODE((project.folder / "project.json").stat().st_mode) == 0o600


def test_two_commands_at_once_agree_on_the_id(tmp_path: Path) -> None:
    gate, ids = threading.Barrier(8), []

    def ask() -> None:
        gate.wait()
        ids.append(find(tmp_path, {}).id)

    threads = [threading.Thread(target=ask) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(ids) == 8
    assert len(set(ids)) == 1


def test_environment_then_pyproject_fix_the_id(tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text('[tool.clusterddp]\nproject = "from-toml"\ngrace = "5s"\n')
    assert find(tmp_path, {}).id == "from-toml"
    assert find(tmp_path, {"CLUSTERDDP_PROJECT": "ci"}).id == "ci"
    assert find(tmp_path, {}).options["grace"] == "5s"
    assert find(tmp_path, {}).workdir == f"~/clusterddp/{find(tmp_path, {}).label}-from-toml"


@pytest.mark.parametrize("bad", ["a/b", "..", "-x", "a b", "x" * 65])
def test_an_id_that_is_no_path_name_is_refused_with_its_place(tmp_path: Path, bad: str) -> None:
    with pytest.raises(UsageError, match="CLUSTERDDP_PROJECT"):
        find(tmp_path, {"CLUSTERDDP_PROJECT": bad})
    (tmp_path / "pyproject.toml").write_text(f'[tool.clusterddp]\nproject = "{bad}"\n')
    with pytest.raises(UsageError, match=r"pyproject\.toml: tool\.clusterddp\.project"):
        find(tmp_path, {})


def test_a_broken_pyproject_matters_only_if_it_speaks_of_us(tmp_path: Path) -> None:
    for broken in (b"[broken", "# für\n".encode("latin-1")):
        (tmp_path / "pyproject.toml").write_bytes(broken)
        assert find(tmp_path, {}).options == {}
        (tmp_path / "pyproject.toml").write_bytes(b"[tool.clusterddp]\n" + broken)
        with pytest.raises(UsageError, match=r"pyproject\.toml: .*; correct the file"):
            find(tmp_path, {})


@pytest.mark.parametrize("text", ['tool = "clusterddp"', "[[tool]]\nclusterddp = 1", "[tool]\nclusterddp = 1"])
def test_options_that_are_no_table_are_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "pyproject.toml").write_text(text)
    with pytest.raises(UsageError, match=r"pyproject\.toml: tool\.clusterddp is not a table; write it as"):
        find(tmp_path, {})


@pytest.mark.parametrize(
    ("name", "label"), [("My Net!", "My-Net"), ("härte", "h-rte"), ("...", "project"), ("a" * 60, "a" * 40)]
)
def test_the_label_is_safe_in_a_path(tmp_path: Path, name: str, label: str) -> None:
    folder = tmp_path / name
    folder.mkdir()
    assert find(folder, {}).label == label


def test_inventory_and_limit_are_remembered_and_the_id_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    project = find(tmp_path, {})
    ident = project.id
    project.remember(tmp_path.__class__("hosts.yaml"), "gpu*")
    assert project.remembered.inventory == tmp_path / "hosts.yaml"
    assert (project.remembered.limit, project.id) == ("gpu*", ident)
    project.remember(None, None)
    assert project.remembered.inventory is None


def test_an_inventory_beside_the_project_is_still_remembered_when_the_project_is_moved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    inventory = tmp_path / "lab.yaml"
    inventory.touch()
    (tmp_path / "clone").mkdir()
    monkeypatch.chdir(tmp_path / "clone")
    find(environ={}).remember(Path("../lab.yaml"), None)
    find(environ={}).remember_attempt(Path("../lab.yaml"))
    assert find(environ={}).attempted_inventory == inventory
    moved = tmp_path / "deep" / "er" / "clone"
    moved.parent.mkdir(parents=True)
    Path.cwd().rename(moved)
    assert find(moved, {}).remembered.inventory == inventory


def test_the_run_index_appends_and_passes_over_a_line_cut_short(tmp_path: Path) -> None:
    project = find(tmp_path, {})
    project.record_run(RunRecord(hosts=("h",), run="a"))
    with (project.folder / "runs.jsonl").open("ab") as out:
        out.write(b'{"run": \n')
    project.record_run(RunRecord(hosts=("h",), run="b"))
    assert [record.run for record in project.runs()] == ["a", "b"]


def test_a_line_that_a_full_disk_cuts_short_is_said_and_takes_no_other_with_it(tmp_path: Path) -> None:
    project = find(tmp_path, {})
    project.record_run(RunRecord(hosts=("h",), run="a"))
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    room = (project.folder / "runs.jsonl").stat().st_size + 10
    resource.setrlimit(resource.RLIMIT_FSIZE, (room, limits[1]))
    try:
        with pytest.raises(UnwritableError, match=r"cannot be written \(No space left on device\); make room there"):
            project.record_run(RunRecord(hosts=("h",), run="b"))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    project.record_run(RunRecord(hosts=("h",), run="c"))
    project.record_run(RunRecord(hosts=("h",), run="d"))
    assert [record.run for record in project.runs(own=True)] == ["a", "c", "d"]
    assert (project.folder / "runs.jsonl").read_bytes().count(b"\n") == 4


def test_a_project_that_cannot_be_written_is_one_line_with_the_remedy(tmp_path: Path) -> None:
    (tmp_path / ".clusterddp").write_text("a file in the way")
    with pytest.raises(UsageError, match=r"\.clusterddp: is no folder; .*; remove it, or move it away"):
        _ = find(tmp_path, {}).id


@pytest.mark.parametrize("marked", [False, True])
def test_a_home_that_up_was_given_in_is_no_project_of_the_folders_below(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, marked: bool
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    find(tmp_path).remember(None, None)
    work = tmp_path / "work" / "deep"
    work.mkdir(parents=True)
    if marked:
        find(tmp_path / "work").remember(None, None)
    assert find(work).root == (tmp_path / "work" if marked else work)
    assert find(tmp_path).root == tmp_path


def test_a_path_is_shown_as_it_can_be_typed_and_whole_from_the_root(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "sub").mkdir()
    for folder, shown in (
        (tmp_path, "inventory.yaml"),
        (tmp_path / "sub", str(tmp_path / "inventory.yaml")),
        (Path("/"), str(tmp_path / "inventory.yaml")),
    ):
        monkeypatch.chdir(folder)
        assert short_path(tmp_path / "inventory.yaml") == shown


def test_a_user_without_a_home_and_an_account_has_projects(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As containers run with any uid."""
    (tmp_path / ".git").mkdir()
    (tmp_path / "inner").mkdir()
    monkeypatch.delenv("HOME")
    monkeypatch.setattr(pwd, "getpwuid", {}.__getitem__)
    assert find(tmp_path / "inner", {}).root == tmp_path
