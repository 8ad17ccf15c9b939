"""The code of runs in the project: what is kept, what goes, what it tells."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING

import pytest

from clusterddp.remote.shared.wire.chunks import CHUNK
from clusterddp.sync import code_store
from clusterddp.sync.code_diff import FileDiff, code_diff
from clusterddp.sync.project_files.project_tree import scan
from tests.unit.sync_help import content, project_at, tree_of, write

if TYPE_CHECKING:
    from pathlib import Path

    from clusterddp.project.project import Project

MONTH = 31 * 86400


@pytest.fixture
def project(tmp_path: Path) -> Project:
    return project_at(tmp_path / "toy")


def kept(project: Project) -> str:
    """Keep the project's code as it is; its digest."""
    tree = scan(project)
    code_store.keep(project, tree)
    return tree.digest


def age(project: Project, digest: str, seconds: float) -> None:
    """Let a code have been used so long ago, and what is old be looked for again."""
    path = project.folder / "objects" / "manifests" / digest
    os.utime(path, (time.time() - seconds,) * 2)
    (project.folder / "objects" / "cleared").unlink()


def files_of(project: Project) -> set[str]:
    return {path.parent.name + path.name for path in (project.folder / "objects" / "files").glob("*/*")}


def test_a_code_is_laid_out_as_it_was(project: Project, tmp_path: Path) -> None:
    write(project.root, **{"train.py": "a", "pkg/é.py": "b", "pkg/same.py": "a"})
    (project.root / "run.sh").symlink_to("train.py")
    before = content(project.root)
    digest = kept(project)
    write(project.root, **{"train.py": "later"})
    entries = code_store.load(project, digest)
    assert entries is not None
    place = tmp_path / "place"
    place.mkdir()
    assert code_store.lay_out(project, entries, place) == {}
    assert content(place) == {name: text for name, text in before.items() if not text.startswith("->")}
    assert len(files_of(project)) == 2  # equal contents once


def test_a_large_file_comes_back_with_its_chunks(project: Project, tmp_path: Path) -> None:
    write(project.root, **{"table.yaml": "x" * (9 << 20)})
    tree = scan(project)
    code_store.keep(project, tree)
    entries = code_store.load(project, tree.digest)
    assert entries is not None
    assert code_store.lay_out(project, entries, tmp_path) == tree.chunks
    assert code_store.content(project, entries[0]) == b"x" * (9 << 20)


def test_what_changed_since_the_run_before_is_told(project: Project) -> None:
    write(project.root, **{"a.py": "1", "b.py": "1", "c.py": "1"})
    assert code_store.keep(project, scan(project)) is None
    write(project.root, **{"a.py": "2", "d.py": "1"})
    (project.root / "b.py").unlink()
    changes = code_store.keep(project, scan(project))
    assert changes == code_store.CodeChanges(added=("d.py",), removed=("b.py",), changed=("a.py",))
    again = code_store.keep(project, scan(project))
    assert again
    assert again.count == 0


def test_a_file_that_looks_like_a_key_is_never_kept(project: Project) -> None:
    write(project.root, **{"train.py": "x", ".env": "TOKEN=hunter2", "id_rsa": "hunter2", "cert.pem": "hunter2"})
    kept(project)
    stored = [path for path in (project.folder / "objects").rglob("*") if path.is_file()]
    assert stored
    assert not any(b"hunter2" in path.read_bytes() for path in stored)
    assert all(path.stat().st_mode & 0o077 == 0 for path in (*stored, project.folder / "objects"))


def test_a_code_no_run_has_used_for_a_month_goes_with_what_only_it_has(project: Project) -> None:
    write(project.root, **{"train.py": "old", "common.py": "both"})
    old = kept(project)
    write(project.root, **{"train.py": "newer"})
    age(project, old, MONTH)
    new = kept(project)
    assert code_store.load(project, old) is None
    entries = code_store.load(project, new)
    assert entries is not None
    assert {entry.content for entry in entries} == files_of(project)


def test_the_oldest_go_when_all_would_take_too_much(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(code_store, "MAX_BYTES", 2500)
    digests = []
    for letter in "abcd":
        write(project.root, **{"train.py": letter * 1000})
        digests.append(kept(project))
        os.utime(project.folder / "objects" / "manifests" / digests[-1], (time.time() - 100 + ord(letter),) * 2)
    assert [code_store.load(project, digest) is not None for digest in digests] == [False, False, True, True]
    assert len(files_of(project)) == 2


def test_of_a_code_too_large_to_be_kept_the_names_are(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    write(project.root, **{"train.py": "a"})
    small = kept(project)
    monkeypatch.setattr(code_store, "MAX_BYTES", 2000)
    write(project.root, **{"train.py": "b" * 3000})
    large = kept(project)
    found = code_diff(project, small, large)
    assert found == (FileDiff(path="train.py", change="changed", note="its lines are no longer kept"),)
    assert code_store.load(project, small) is not None


def test_a_code_whose_files_change_meanwhile_is_not_kept(project: Project) -> None:
    write(project.root, **{"train.py": "a"})
    tree = scan(project)
    write(project.root, **{"train.py": "b"})
    assert code_store.keep(project, tree) is None
    assert code_store.load(project, tree.digest) is None
    assert files_of(project) == set()


def test_what_is_damaged_or_no_digest_counts_as_not_kept(project: Project) -> None:
    write(project.root, **{"train.py": "a"})
    digest = kept(project)
    entries = code_store.load(project, digest)
    assert entries
    for path in (project.folder / "objects" / "files").glob("*/*"):
        path.write_bytes(b"b")
    assert code_store.content(project, entries[0]) is None
    assert code_store.load(project, "../../project.json") is None
    (project.folder / "objects" / "manifests" / digest).write_bytes(b"[]\n")
    assert code_store.load(project, digest) is None


def test_a_project_that_cannot_be_written_keeps_nothing(project: Project) -> None:
    write(project.root, **{"train.py": "a"})
    (project.root / ".clusterddp").write_text("in the way")
    assert code_store.keep(project, scan(project)) is None


def test_two_codes_differ_by_lines(project: Project) -> None:
    write(project.root, **{"train.py": "a = 1\nb = 2\n", "gone.py": "x\n", "data.cfg": "1"})
    old = kept(project)
    write(project.root, **{"train.py": "a = 1\nb = 3\n", "new.py": "y\n"})
    (project.root / "gone.py").unlink()
    (project.root / "data.cfg").write_bytes(b"\xff\xfe")
    (project.root / "new.py").chmod(0o755)
    found = code_diff(project, old, kept(project))
    assert found is not None
    assert [(one.path, one.change, one.note) for one in found] == [
        ("data.cfg", "changed", "no text: 1 byte → 2 bytes"),
        ("gone.py", "removed", ""),
        ("new.py", "added", ""),
        ("train.py", "changed", ""),
    ]
    assert found[3].lines == ("--- a/train.py", "+++ b/train.py", "@@ -1,2 +1,2 @@", " a = 1", "-b = 2", "+b = 3")
    (project.root / "new.py").chmod(0o644)
    only = code_diff(project, kept(project), kept(project))
    assert only == ()


def test_a_mode_that_changed_is_told(project: Project) -> None:
    write(project.root, **{"run.py": "a"})
    old = kept(project)
    (project.root / "run.py").chmod(0o755)
    assert code_diff(project, old, kept(project)) == (FileDiff(path="run.py", change="changed", note="executable now"),)
    assert code_diff(project, old, "0" * 64) is None


def test_a_file_of_several_chunks_is_kept_and_comes_back(tmp_path: Path) -> None:
    root = tmp_path / "project"
    write(root, empty="")
    (root / "weights.bin").write_bytes(os.urandom(CHUNK + 5))
    tree = tree_of(root)
    code_store.keep(project_at(root), tree)
    (tmp_path / "again").mkdir()
    assert code_store.lay_out(project_at(root), tree.entries, tmp_path / "again")
    assert (tmp_path / "again/weights.bin").read_bytes() == (root / "weights.bin").read_bytes()
