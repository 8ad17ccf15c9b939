"""Which variables a project's code is seen to set, and what counts as any of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from clusterddp.remote.fork_server import environ_writes
from clusterddp.remote.fork_server.environ_writes import UnknownError, mattering_write, variables_set
from tests.unit.user_rights import another_user, needs_root

if TYPE_CHECKING:
    from pathlib import Path

SETS = {
    "os.environ['A'] = '1'": {"A"},
    "os.environ['A'] += '1'": {"A"},
    "del os.environ['A']": {"A"},
    "environ['A'] = environ['B']": {"A"},
    "os.environb[b'A'] = b'1'": {"A"},
    "os.environ.setdefault('A', '1')": {"A"},
    "os.environ.pop('A', None)": {"A"},
    "os.environ.update(A='1', B='2')": {"A", "B"},
    "os.environ.update({'A': '1'}, B='2')": {"A", "B"},
    "os.putenv('A', '1'); os.unsetenv('B')": {"A", "B"},
    "rank = int(os.environ['RANK'])": set(),
    "os.environ.get('A'), 'A' in os.environ, dict(os.environ), {**os.environ}": set(),
    "for name in os.environ: pass": set(),
    "[name for name in os.environ if name]": set(),
    "subprocess.run(['ls'], env=os.environ)": set(),
    "from os import environ": set(),
    "from os import path as environ_path; import os as o; o.environ['A'] = '1'": {"A"},
}
MAY_SET_ANY = [
    "os.environ[name] = '1'",
    "os.environ.update(settings)",
    "os.environ.update(**settings)",
    "os.environ |= settings",
    "os.environ.clear()",
    "env = os.environ",
    "change(os.environ)",
    "mock.patch.dict(os.environ, {'A': '1'}).start()",
    "os.putenv(name, '1')",
    "from dotenv import load_dotenv\nload_dotenv()",
    "from os import environ as env\nenv['A'] = '1'",
    "from os import putenv as put\nput('A', '1')",
    "from dotenv import load_dotenv as load\nload()",
]


@pytest.mark.parametrize("source", SETS)
def test_what_is_set_by_name_is_found(source: str) -> None:
    assert set(variables_set(source.encode())) == SETS[source]


@pytest.mark.parametrize("source", MAY_SET_ANY)
def test_what_the_text_does_not_name_counts_as_any(source: str) -> None:
    with pytest.raises(UnknownError):
        variables_set(source.encode())


def test_a_write_that_may_matter_is_told_with_its_place(tmp_path: Path) -> None:
    (tmp_path / "pkg").mkdir()
    (tmp_path / "pkg" / "early.py").write_text("import os\n\nos.environ['OMP_NUM_THREADS'] = '4'\nimport torch\n")
    assert mattering_write([str(tmp_path)]) == f"{tmp_path}/pkg/early.py:3 sets OMP_NUM_THREADS"
    (tmp_path / "pkg" / "early.py").write_text("def f(env): pass\nimport os\nf(os.environ)\n")
    assert mattering_write([str(tmp_path)]) == f"{tmp_path}/pkg/early.py:3 may set any variable"


def test_an_import_by_another_name_is_told_with_its_line(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("import sys\nfrom os import environ as env\nenv['OMP_NUM_THREADS'] = '1'\n")
    assert mattering_write([str(tmp_path)]) == f"{tmp_path}/train.py:2 may set any variable"


def test_the_script_is_examined_whatever_its_suffix(tmp_path: Path) -> None:
    script = tmp_path / "train"
    script.write_text("import os\nos.environ['OMP_NUM_THREADS'] = '4'\n")
    assert mattering_write([str(tmp_path)]) is None
    assert mattering_write([str(tmp_path)], str(script)) == f"{script}:2 sets OMP_NUM_THREADS"
    assert mattering_write([str(tmp_path)], str(tmp_path)) is None  # a folder with a __main__.py
    assert mattering_write([str(tmp_path)], str(tmp_path / "gone")) is None


def test_writes_that_torch_does_not_read_at_import_are_passed_over(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("import os\nos.environ['NCCL_DEBUG'] = 'INFO'\nos.environ['RANK'] = '0'\n")
    assert mattering_write([str(tmp_path)]) is None


def test_environments_and_hidden_folders_are_not_the_projects_code(tmp_path: Path) -> None:
    for folder in (".tox", "env/lib", "__pycache__"):
        (tmp_path / folder).mkdir(parents=True)
        (tmp_path / folder / "other.py").write_text("import os\nos.environ['OMP_NUM_THREADS'] = '4'\n")
    (tmp_path / "env" / "pyvenv.cfg").write_text("")
    (tmp_path / "broken.py").write_text("print 'environ'\n")
    assert mattering_write([str(tmp_path)]) is None


def test_more_files_than_can_be_looked_at_may_set_any(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(environ_writes, "MAX_FILES", 1)
    for name in ("one.py", "two.py"):
        (tmp_path / name).write_text("")
    assert "too many Python files" in str(mattering_write([str(tmp_path)]))


def test_folders_behind_links_are_examined_once(tmp_path: Path) -> None:
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib" / "setup.py").write_text("import os\nos.environ['OMP_NUM_THREADS'] = '4'\n")
    (tmp_path / "project").mkdir()
    for name in ("common", "again"):
        (tmp_path / "project" / name).symlink_to("../lib")
    (tmp_path / "lib" / "round").symlink_to("..")
    assert mattering_write([f"{tmp_path}/project"]) == f"{tmp_path}/project/again/setup.py:2 sets OMP_NUM_THREADS"
    assert len(list(environ_writes.project_files([f"{tmp_path}/project"]))) == 1


def test_folders_of_data_are_no_limit_and_those_behind_links_are_passed_by(tmp_path: Path) -> None:
    project, disk = tmp_path / "project", tmp_path / "disk"
    for number in range(environ_writes.MAX_FILES + 1):
        (project / "data" / str(number)).mkdir(parents=True)
    (project / "src").mkdir()
    (project / "src" / "settings.py").write_text("import os\nos.environ['OMP_NUM_THREADS'] = '4'\n")
    (disk / "images" / "a" / "b").mkdir(parents=True)
    (disk / "images" / "a" / "b" / "setup.py").write_text("import os\nos.environ.clear()\n")
    (project / "images").symlink_to(disk / "images")
    assert mattering_write([str(project)]) == f"{project}/src/settings.py:2 sets OMP_NUM_THREADS"
    assert list(environ_writes.project_files([str(project)])) == [f"{project}/src/settings.py"]


def test_a_package_without_init_behind_a_link_is_examined(tmp_path: Path) -> None:
    (tmp_path / "project").mkdir()
    (tmp_path / "acme" / "train").mkdir(parents=True)
    (tmp_path / "acme" / "train" / "settings.py").write_text("import os\nos.environ['OMP_NUM_THREADS'] = '4'\n")
    (tmp_path / "project" / "acme").symlink_to("../acme")
    found = mattering_write([f"{tmp_path}/project"])
    assert found == f"{tmp_path}/project/acme/train/settings.py:2 sets OMP_NUM_THREADS"


def test_a_link_to_many_folders_of_which_one_has_code_is_too_much(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(environ_writes, "MAX_FILES", 10)
    (tmp_path / "project").mkdir()
    for number in range(12):
        (tmp_path / "disk" / f"{number}").mkdir(parents=True)
    (tmp_path / "disk" / "prepare.py").touch()
    (tmp_path / "project" / "data").symlink_to("../disk")
    assert "data has too many folders" in str(mattering_write([f"{tmp_path}/project"]))


@needs_root
def test_what_cannot_be_read_behind_a_link_is_left_out(tmp_path: Path) -> None:
    (tmp_path / "project").mkdir()
    (tmp_path / "lib" / "pkg").mkdir(parents=True)
    (tmp_path / "lib" / "pkg" / "__init__.py").touch()
    (tmp_path / "lib" / "lost+found").mkdir(mode=0o700)
    (tmp_path / "project" / "lib").symlink_to("../lib")
    with another_user(tmp_path):
        found = list(environ_writes.project_files([f"{tmp_path}/project"]))
    assert found == [f"{tmp_path}/project/lib/pkg/__init__.py"]


def test_a_script_that_is_no_source_may_set_any(tmp_path: Path) -> None:
    (tmp_path / "app.pyz").write_bytes(b"PK\3\4\0")
    assert "app.pyz is no source file" in str(mattering_write([str(tmp_path)], f"{tmp_path}/app.pyz"))
