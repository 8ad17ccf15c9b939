"""Random projects, edits and writes by runs: after a sync the project is there, and nothing else was harmed."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from clusterddp.remote.shared import manifest
from tests.unit.sync_help import FakeHost, content, push, tree_of

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
@given(st.lists(st.tuples(TREES, RUN_WRITES), min_size=1, max_size=4))
def test_after_every_sync_the_project_is_there_and_nothing_a_run_wrote_is_lost(
    steps: list[tuple[dict[str, str], set[str]]],
) -> None:
    place = Path(tempfile.mkdtemp())
    try:
        host, root = FakeHost(place), place / "project"
        for number, (files, run_writes) in enumerate(steps):
            shutil.rmtree(root, ignore_errors=True)
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


def test_the_digest_does_not_depend_on_the_order(tmp_path: Path) -> None:
    put(tmp_path / "p", {"a": "1", "b/c": "2"}, over=True)
    entries = tree_of(tmp_path / "p").entries
    assert manifest.digest(reversed(entries)) == manifest.digest(entries)
