"""Whatever is killed at whatever moment, the next sync or push is whole, and what was there is old or new, never half.

A real helper's operation is killed at any of its changes of a disk; the operator ends, or the connection, at any byte.
`make kills` tries hundreds, `make test` a few.
"""

from __future__ import annotations

import contextlib
import os
import shutil
from typing import TYPE_CHECKING, Any

from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from clusterddp.errors import HostError
from clusterddp.hosts.answers import DEFAULT_LIMIT, Limit
from clusterddp.hosts.client import Host
from clusterddp.hosts.ssh import Connector
from clusterddp.remote.shared.wire.chunks import CHUNK
from clusterddp.sync.chosen_files import read_sources
from clusterddp.sync.deliver import deliver
from clusterddp.sync.send_code import sync
from clusterddp.sync.transfer.progress_rate import Transfer
from clusterddp.sync.transfer.upload import Files, Uploads
from tests.integration.real_helper import entry, with_test_operations
from tests.unit.sync_help import content, project_at, tree_of, write

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping
    from pathlib import Path

    import pytest

EXAMPLES = int(os.environ.get("CLUSTERDDP_KILLS", "3"))
LARGE = {one: os.urandom(1000) * ((CHUNK + 300_000) // 1000) for one in "12"}  # of two chunks each
NAMES = st.sampled_from(["a.py", "b.py", "pkg/a.py", "pkg/b.py", "pkg", "deep/er/c.py", "deep", "zeros", "ck.bin"])
TEXTS = st.one_of(st.sampled_from(["", "1", "22", "333" * 9000]), st.sampled_from(sorted(LARGE)).map(LARGE.__getitem__))
TREES = st.dictionaries(NAMES, TEXTS, min_size=1, max_size=7)
# What dies: an operation at its Nth change, the operator after so many bytes, or the connection.
DEATHS = st.one_of(
    st.tuples(st.just("helper"), st.integers(1, 60)),
    st.tuples(st.sampled_from(["operator", "connection"]), st.integers(1, CHUNK * 2)),
)
patient = settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


class Ended(Exception):
    """The operator is gone."""


class Mortal:
    """A host whose helper, connection or operator dies at a certain moment, as long as ``death`` says so."""

    def __init__(self, place: Path) -> None:
        self._connector = Connector()
        self.entry = entry(place / "state", workdir=str(place / "work"))
        self.name, self.death = self.entry.name, ("", 0)
        self._real = self._opened()

    def _opened(self) -> Host:
        return Host.open(self.entry, self._connector, with_test_operations())

    def close(self) -> None:
        self._real.close()
        self._connector.close()

    def call(
        self, op: str, args: Mapping[str, Any], *, timeout: float | None = None, limit: Limit = DEFAULT_LIMIT
    ) -> Any:
        return self.upload(op, args, (), timeout=timeout, limit=limit)

    def upload(
        self,
        op: str,
        args: Mapping[str, Any],
        chunks: Iterable[bytes],
        *,
        timeout: float | None = None,
        limit: Limit = DEFAULT_LIMIT,
    ) -> Any:
        if self._real.lost:
            self._real.close()
            self._real = self._opened()
        what, at = self.death
        if what == "helper":
            return self._real.upload("killed", {**args, "op": op, "at": at}, chunks, timeout=timeout, limit=limit)
        return self._real.upload(
            op, args, self._cut(chunks, what, at) if what else chunks, timeout=timeout, limit=limit
        )

    def _cut(self, chunks: Iterable[bytes], what: str, left: int) -> Iterator[bytes]:
        for chunk in chunks:
            for start in range(0, len(chunk), 60_000):
                piece = chunk[start : start + min(60_000, left)]
                yield piece
                left -= len(piece)
                if left <= 0 and what == "operator":
                    raise Ended
                if left <= 0:
                    self._real.close()


@contextlib.contextmanager
def mortal(place: Path) -> Iterator[Mortal]:
    host = Mortal(place)
    try:
        yield host
    finally:
        host.close()


def lay(root: Path, files: Mapping[str, str | bytes]) -> dict[str, bytes]:
    """Make a folder hold just these files, as far as names go together; what it holds."""
    shutil.rmtree(root, ignore_errors=True)
    root.mkdir()
    for name, text in sorted(files.items()):
        path = root / name
        if path.is_dir() or any(above.is_file() for above in path.parents):
            continue
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        if name == "zeros":
            os.truncate(path, 2 * CHUNK + 5)
    return found(root)


def found(root: Path) -> dict[str, bytes]:
    """Every file below a folder but ours."""
    files = (path for path in root.rglob("*") if path.is_file())
    inside = {path.relative_to(root).as_posix(): path for path in files}
    return {name: path.read_bytes() for name, path in inside.items() if not name.startswith(".clusterddp")}


def survive(host: Mortal, death: tuple[str, int], act: Callable[[], object]) -> None:
    host.death = death
    with contextlib.suppress(HostError, Ended):
        act()
    host.death = ("", 0)


@patient
@given(st.lists(st.tuples(TREES, st.lists(DEATHS, max_size=3), st.booleans()), min_size=1, max_size=3))
def test_whatever_dies_at_whatever_moment_the_next_sync_is_whole(
    tmp_path_factory: pytest.TempPathFactory,
    steps: list[tuple[Mapping[str, str | bytes], list[tuple[str, int]], bool]],
) -> None:
    place = tmp_path_factory.mktemp("killed")
    root, work = place / "project", place / "work"
    old: dict[str, bytes] = {}
    with mortal(place) as host:
        for files, deaths, forgets in steps:
            new = lay(root, files)
            write(work, **{"own/snapshot.pt": "epoch 1"})
            for death in deaths:
                survive(host, death, lambda: sync([host], tree_of(root), workdir="/nowhere"))  # type: ignore[list-item]
                there = found(work)
                assert there.pop("own/snapshot.pt") == b"epoch 1"
                assert all(data in (old.get(name), new.get(name)) for name, data in there.items()), death
            if forgets:  # another operator goes on, who knows nothing of what was sent
                shutil.rmtree(place / "project.synced", ignore_errors=True)
            result = sync([host], tree_of(root), workdir="/nowhere")  # type: ignore[list-item]
            assert found(work) == {**new, "own/snapshot.pt": b"epoch 1"}
            assert (result.hosts[0].digest, result.hosts[0].kept) == (tree_of(root).digest, ())
            assert not (work / ".clusterddp-live/parts").exists()
            old = new
    shutil.rmtree(place)


@patient
@given(st.lists(st.tuples(TREES, st.lists(DEATHS, max_size=3)), min_size=1, max_size=3))
@example([({"a.py": ""}, [("helper", 4)])])  # between two looks at the folder's clock
def test_whatever_dies_at_whatever_moment_the_next_push_is_whole(
    tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[Mapping[str, str | bytes], list[tuple[str, int]]]]
) -> None:
    place = tmp_path_factory.mktemp("killed")
    data, project = place / "data", project_at(place / "project")

    def push() -> None:
        folder, chosen = read_sources(project, [str(data)], str(place / "there"), lambda _: None)
        source = Files(chosen.entries, chosen.chunks, lambda entry: chosen.local_paths[entry.path])
        uploads = Uploads(chosen.entries, chosen.chunks, source)
        transfer = Transfer("pushing", lambda _: None)
        where: dict[str, Any] = {"folder": folder, "workdir": "/nowhere", "transfer": transfer}
        deliver([host], uploads, chosen.entries, overwrite=True, **where)  # type: ignore[list-item]

    with mortal(place) as host:
        for number, (files, deaths) in enumerate(steps):
            lay(data, {f"{number}/{name}" if "deep" in name or "pkg" in name else name: files[name] for name in files})
            old, new = found(place / "there"), found(data)
            for death in deaths:
                survive(host, death, push)
                there = found(place / "there")
                assert old.keys() <= there.keys(), death
                assert all(text in (old.get(name), new.get(name)) for name, text in there.items()), death
            push()
            assert found(place / "there") == {**old, **new}
            assert content(place / "there").keys() == {**old, **new}.keys()
    shutil.rmtree(place)
