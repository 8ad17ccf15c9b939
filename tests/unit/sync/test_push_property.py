"""Random projects, edits and writes by runs: after a sync the project is there, and nothing else was harmed."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hypothesis import example, given, settings
from hypothesis import strategies as st

from clusterddp.remote.shared.workdir import manifest
from tests.unit.sync_help import FakeHost, content, push, tree_of

if TYPE_CHECKING:
    from clusterddp.remote.shared.workdir.manifest import Entry
    from clusterddp.sync.project_files.project_tree import Tree

NAMES = st.sampled_from(["a", "b", "a/x", "a/y", "b/x", "a/x/deep", "c.py", "d/e/f"])
TEXTS = st.sampled_from(["1", "2", "333"])
TREES = st.dictionaries(NAMES, TEXTS, max_size=6)
RUN_WRITES = st.sets(st.sampled_from(["run/1", "a/ckpt", "b", "a/x", "d/e/ckpt", "c.py", "a/x/deep"]))


def put(root: Path, files: dict[str, str], *, over: bool) -> dict[str, str]:
    """Write what can be written: a name may be a folder, or need one where a file is."""
    done = {}
    for name, text in sorted(files.items()):
        path = root / name
        if any(above.is_file() for above in path.parents) or path.is_dir() or (path.exists() and not over):
            continue
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        done[name] = text
    return done


def in_the_way(path: str, project: dict[str, str]) -> bool:
    return any(name == path or name.startswith(path + "/") or path.startswith(name + "/") for name in project)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(TREES, RUN_WRITES, st.booleans()), min_size=1, max_size=4))
def test_after_every_sync_the_project_is_there_and_nothing_a_run_wrote_is_lost(
    steps: list[tuple[dict[str, str], set[str], bool]],
) -> None:
    place = Path(tempfile.mkdtemp())
    try:
        host, root = FakeHost(place), place / "project"
        for number, (files, run_writes, another) in enumerate(steps):
            shutil.rmtree(root, ignore_errors=True)
            if another:  # operator, who knows none of the manifests that were sent before
                shutil.rmtree(place / "project.synced", ignore_errors=True)
            root.mkdir()
            project = put(root, files, over=False)
            own = {name: text for name, text in content(host.workdir).items() if text.startswith("run")}
            push(root, host)
            there = content(host.workdir)
            assert {name: there.get(name) for name in project} == project
            assert {name for name in there if not there[name].startswith("run")} == project.keys()
            assert set(own.values()) <= set(there.values())
            for name, text in own.items():
                assert there.get(name) == text or in_the_way(name, project)
            host.calls.clear()
            push(root, host)
            assert host.calls == ["workdir_state"]
            put(host.workdir, {name: f"run {number} {name}" for name in run_writes}, over=True)
    finally:
        shutil.rmtree(place)


ODD_NAME = st.binary(min_size=1, max_size=8).filter(
    lambda name: not {b"/", b"\0"} & {bytes([one]) for one in name} and name not in {b".", b"..", b".git"}
)
LEAF = st.one_of(
    st.tuples(st.sampled_from([b"", b"x", b"text\n" * 900]), st.booleans()),  # a file's bytes, whether it can be run
    st.lists(ODD_NAME, min_size=1, max_size=2).map(b"/".join),  # where a link leads
)
ODD_TREE = st.recursive(
    st.dictionaries(ODD_NAME, LEAF, max_size=4),
    lambda inner: st.dictionaries(ODD_NAME, st.one_of(LEAF, inner), max_size=4),
    max_leaves=12,
)


def make(folder: bytes, tree: dict[bytes, Any]) -> None:
    os.mkdir(folder)  # noqa: PTH102 - bytes
    for name, what in tree.items():
        path = folder + b"/" + name
        if isinstance(what, dict):
            make(path, what)
        elif isinstance(what, tuple):
            handle = os.open(path, os.O_WRONLY | os.O_CREAT, 0o755 if what[1] else 0o644)
            os.write(handle, what[0])
            os.close(handle)
        else:
            os.symlink(what, path)  # noqa: PTH211 - bytes


def seen(place: Path, tree: Tree) -> list[Entry]:
    """What stands at each of a tree's paths."""
    disk = manifest.Disk(os.fsencode(place))
    return [one for one in (disk.entry(entry.path) for entry in tree.entries) if one]


@settings(max_examples=40, deadline=None)
@given(st.lists(ODD_TREE, min_size=2, max_size=3))
def test_any_tree_is_the_same_on_the_host_after_any_other(trees: list[dict[bytes, Any]]) -> None:
    place = Path(tempfile.mkdtemp())
    try:
        host, root = FakeHost(place), place / "project"
        for files in trees:
            shutil.rmtree(root, ignore_errors=True)
            make(os.fsencode(root), files)
            tree = tree_of(root)
            push(root, host)
            assert seen(host.workdir, tree) == list(tree.entries)
            there = {path for path in content(host.workdir) if ".clusterddp-kept-" not in path}
            assert {os.fsencode(path) for path in there} == {manifest.on_disk(one.path) for one in tree.entries}
    finally:
        shutil.rmtree(place)


@given(st.text(min_size=1), st.text())
def test_no_accepted_path_or_link_leads_out(path: str, target: str) -> None:
    entry = manifest.link_entry(path, target)
    try:
        (decoded,) = manifest.decode(manifest.encode([entry]))
    except (manifest.BadManifest, UnicodeEncodeError):
        return
    assert decoded == entry
    base = Path("/base/folder")
    assert str((base / decoded.path).parent / "x").startswith("/base/folder/")
    assert ".." not in Path(decoded.path).parts


@example([("[", "],["), ("],[", "a,")])
@given(st.lists(st.tuples(st.text('a"\\[],\n', min_size=1), st.text('a"\\[],')), max_size=4))
def test_a_manifest_is_a_line_an_entry_whatever_the_names(pairs: list[tuple[str, str]]) -> None:
    entries = manifest.sort_entries(manifest.link_entry(path, target) for path, target in pairs)
    lines = [json.dumps(entry, separators=(",", ":")).encode() + b"\n" for entry in entries]
    assert manifest.encode(entries) == b"".join(lines)


def test_the_digest_does_not_depend_on_the_order(tmp_path: Path) -> None:
    put(tmp_path / "p", {"a": "1", "b/c": "2"}, over=True)
    entries = tree_of(tmp_path / "p").entries
    assert manifest.digest(reversed(entries)) == manifest.digest(entries)
