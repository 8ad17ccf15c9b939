"""Whatever a host lists and sends, nothing is written but below the destination, and it is that host's error."""

from __future__ import annotations

import json
import os
import shutil
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from clusterddp.errors import HelperError, SyncError
from clusterddp.remote.shared.wire.chunk_stream import bundle
from clusterddp.remote.shared.wire.chunks import CHUNK, Chunk, content_of, digest_of
from clusterddp.remote.shared.wire.frames import encode
from clusterddp.remote.shared.workdir.manifest import BadManifest, Entry
from clusterddp.sync.transfer.fetch import ChunkLocation, _checked_entry, fetch_chunks, list_host
from clusterddp.sync.transfer.local_files import ABSENT, OTHER, LocalFolder
from tests.integration.hostile_helper import hostile
from tests.unit.sync_help import content

if TYPE_CHECKING:
    from pathlib import Path

X = digest_of(b"x")
TWO = content_of([X, X])


class Telling:
    """A host that answers whatever it is given; the JSON has been through the frames' own checks."""

    name = "bad"

    def __init__(self, told: Any) -> None:
        self.told = json.loads(json.dumps(told))

    def call(self, *_: Any, **__: Any) -> Any:
        return self.told


def answer(**changes: Any) -> Any:
    told = {"there": True, "folder": True, "root": "/w", "shared": None, "entries": [["a", "file", False, 1, X]]}
    told.update(chunks={}, skipped=[], others=[])
    return {**told, **changes}


def entries(*values: Any) -> Any:
    return answer(entries=list(values))


@pytest.mark.parametrize(
    "told",
    [
        *(entries([path, "file", False, 1, X]) for path in ("../a", "/a", "a/../../b", "", "a//b", ".", "a\0b", 7)),
        *(entries([path, "file", False, 1, X]) for path in (".git/config", "x/.git/hooks/post-commit", "x/.GIT/a")),
        *(entries([path, "file", False, 1, X]) for path in (".clusterddp/project.json", "x/.clusterddp-parts/y")),
        *(entries([path, "file", False, 1, X]) for path in ("x" * 256, "a/" + "é" * 128 + "/b")),
        *(entries(["a", "link", False, 0, to]) for to in ("/etc/passwd", "..", "../x", "", "b/../../c", "b/..")),
        entries(["a", "link", False, 0, "\ud800"]),
        *(entries(["a", kind, False, 0, ""]) for kind in ("fifo", "device", "folder", "other", None)),
        *(entries(["a", "file", False, size, X]) for size in (-1, 1.5, "1", None, CHUNK + 1, True)),
        *(entries(["a", "file", mode, 1, X]) for mode in (0o4755, "yes", None)),
        *(entries(["a", "file", False, 1, name]) for name in ("../../x", "x", X.upper(), X + "-0", 7)),
        entries(["a", "file", False, CHUNK + 1, TWO]),
        answer(entries=[["a", "file", False, CHUNK + 1, TWO]], chunks={TWO: [X]}),
        answer(entries=[["a", "file", False, CHUNK + 1, TWO]], chunks={TWO: [X, "../.."]}),
        answer(entries=[["a", "file", False, 5 * CHUNK, TWO]], chunks={TWO: [X, X]}),
        answer(entries=[["a", "file", False, CHUNK + 1, TWO]], chunks=[[]]),
        entries(["a", "file", False, 1, X], ["a", "file", False, 1, X]),
        entries(["a", "file", False, 1, X], ["a/b", "file", False, 1, X]),
        answer(folder=False, entries=[["a/b/m.pt", "link", False, 0, "../../x"]]),  # renamed to m.pt it would lead out
        answer(folder=False, entries=[["a", "file", False, 1, X], ["b", "file", False, 1, X]]),
        entries(["a/" * 2048 + "b", "file", False, 1, X]),
        answer(entries=7), answer(entries=[7]), answer(skipped=[["a"]]), answer(others=7), answer(chunks=7),
        [],
    ],
    ids=lambda told: repr(told)[60:140],
)  # fmt: skip
def test_a_listing_of_what_may_not_come_is_an_error_of_its_host(told: Any) -> None:
    with pytest.raises(HelperError, match="bad: its answer is damaged"):
        list_host(Telling(told), "/w", "out")  # type: ignore[arg-type]


def sent(*bodies: bytes, end: bool = True) -> bytes:
    frames = [encode({"id": 1, "kind": "data"}, body) for body in bodies]
    return b"".join(frames) + (encode({"id": 1, "kind": "end"}, b"null") if end else b"")


def chunk(data: bytes, digest: str = "") -> bytes:
    return bundle([(digest or digest_of(data), data)], compress=False)


@pytest.mark.parametrize(
    "told",
    [
        sent(chunk(b"y", X)),
        sent(chunk(b"x"), chunk(b"x"), chunk(b"x")),
        sent(chunk(b"x")),
        sent(),
        sent(chunk(b"x")[:-1]),
        sent(b"no bundle at all"),
        sent(b'["plain",9000000,[["a",9000000]]]\n'),
    ],
    ids=lambda told: repr(told[20:80]),
)
def test_other_bytes_than_were_announced_are_an_error_of_their_host(told: bytes) -> None:
    wanted = [ChunkLocation(chunk=Chunk(X, 1), path="a", offset=offset) for offset in (0, 1)]
    with hostile(told) as host, pytest.raises(HelperError, match="bad: what it sends is damaged"):
        assert [data for _, data in fetch_chunks(host, "/w", wanted)] in ([], [b"x"], [b"x", b"x"])


def test_a_chunk_of_a_file_that_has_changed_is_passed_over() -> None:
    told = sent(bundle([(digest_of(b"new"), b"new"), (X, b"x")], compress=False))
    wanted = [
        ChunkLocation(chunk=Chunk(digest_of(b"old"), 3), path="a", offset=0),
        ChunkLocation(chunk=Chunk(X, 1), path="b", offset=0),
    ]
    with hostile(told) as host:
        assert list(fetch_chunks(host, "/w", wanted)) == [(X, b"x")]


PATHS = st.lists(st.sampled_from(["a", "b", "..", ".", "", "c.py", ".git"]), min_size=1, max_size=4).map("/".join)


LISTED = st.lists(st.tuples(PATHS, st.sampled_from(["file", "link"]), PATHS), max_size=6)


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_nothing_is_written_outside_whatever_links_lie_and_come(
    tmp_path_factory: pytest.TempPathFactory, data: Any
) -> None:
    listed, overwrite = data.draw(LISTED), data.draw(st.booleans())
    place = tmp_path_factory.mktemp("landing")
    outside, folder = place / "outside", place / "in/dest"
    for path in (outside / "a/b", folder):
        path.mkdir(parents=True)
    (outside / "file").write_text("mine")
    for name in data.draw(st.sets(st.sampled_from(["a", "b", "c.py"]))):
        (folder / name).symlink_to(data.draw(st.sampled_from([outside, outside / "file", outside / "new"])))
    before = content(outside)
    chunks = {X: [Chunk(X, 1)]}
    with LocalFolder(folder) as landing:
        for path, kind, target in listed:
            try:
                entry = _checked_entry(
                    [path, kind, False, (kind == "file" and 1) or 0, X if kind == "file" else target]
                )
            except (ValueError, BadManifest):
                continue
            landing.want(chunks, {X: 1})
            landing.put(X, b"x")
            try:
                if overwrite or landing.state(entry) == ABSENT:
                    landing.move_into_place(entry, last=True, overwrite=overwrite)
            except SyncError:  # a link is in the way
                continue
    assert content(outside) == before
    for path in folder.rglob("*"):
        if path.is_symlink() and not str(path.readlink()).startswith(str(outside)):
            assert str(os.path.normpath(path.parent / path.readlink())).startswith(str(folder))
    shutil.rmtree(place)


def test_what_is_here_is_told_apart(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("x")
    (tmp_path / "b").mkdir()
    (tmp_path / "l").symlink_to("b")
    with LocalFolder(tmp_path) as landing:
        states = {path: landing.state(Entry(path, "file", False, 1, X)) for path in ("a", "b", "c/d", "l/x", "a/x")}
    assert states == {"a": "same", "b": OTHER, "c/d": ABSENT, "l/x": OTHER, "a/x": OTHER}
