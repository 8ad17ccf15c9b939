"""Hosts in this process for the tests of sync: the real remote functions, without a connection."""

from __future__ import annotations

import contextlib
import json
import os
import queue
import threading
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from clusterddp.errors import HelperError
from clusterddp.hosts.answers import DEFAULT_LIMIT, Limit
from clusterddp.project.project import Project
from clusterddp.remote.helper import request as request_module
from clusterddp.remote.helper.operations import find
from clusterddp.remote.helper.request import Request
from clusterddp.remote.shared.wire.chunks import digest_of
from clusterddp.remote.shared.workdir import manifest
from clusterddp.remote.system.bootstrap import Refused
from clusterddp.remote.workdir.folder_lock import LIVE_FOLDER
from clusterddp.remote.workdir.run_markers import mark
from clusterddp.sync.manifest_history import ManifestHistory
from clusterddp.sync.project_files.project_tree import Tree, scan
from clusterddp.sync.send_code import sync

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from clusterddp.sync.result import SyncResult

CKPT = "ckpt/last.pt"  # a file of data


class Cut(BaseException):
    """The process is killed here."""


def cut_after(steps: int) -> Callable[[Any], Any]:
    """What wraps functions so that they can be called ``steps`` times in all; the next call is a Cut."""
    left = [steps]

    def counted(real: Any) -> Any:
        def call(*args: Any, **options: Any) -> Any:
            left[0] -= 1
            if left[0] < 0:
                raise Cut
            return real(*args, **options)

        return call

    return counted


class FakeRequest(Request):
    """A Request whose body comes through a queue."""

    def __init__(self, args: dict[str, Any]) -> None:
        super().__init__(1, args, -1, -1)
        self.pieces: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self.ended = False

    def read(self) -> bytes:
        piece = None if self.ended else self._next_piece()
        self.ended = piece is None
        return piece or b""

    def _next_piece(self) -> bytes | None:
        while True:
            try:
                return self.pieces.get(timeout=request_module.WAIT_INTERVAL / 1000)
            except queue.Empty:
                if self.while_waiting:
                    self.while_waiting()


class FakeHost:
    """A host with a state folder and a workdir of its own under ``place``."""

    def __init__(self, place: Path, name: str = "gpu01", *, workdir: str | None = None, ssh: bool = False) -> None:
        self.name = name
        self.place = place / name
        self.place.mkdir(exist_ok=True)
        self.state = self.place / "state"
        self.state.mkdir(mode=0o700, exist_ok=True)
        self.workdir = Path(workdir or self.place / "work")
        way = "ssh" if ssh else "local"
        self.entry: Any = SimpleNamespace(workdir=str(self.workdir), connection=way, name=name, links={})
        self.calls: list[str] = []
        self.sent_bytes = 0

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
        del timeout, limit
        self.calls.append(op)
        request = FakeRequest({**args, "state": str(self.state)})
        answer: list[Any] = []

        def work() -> None:
            try:
                answer.append(find(op)(request))
            except BaseException as error:  # noqa: BLE001 - raised where it is asked for
                answer.append(error)

        thread = threading.Thread(target=work)
        thread.start()
        try:
            for chunk in chunks:
                self.sent_bytes += len(chunk)
                request.pieces.put(chunk)
        finally:
            request.pieces.put(None)
            thread.join()
        if isinstance(answer[0], Refused):
            raise HelperError(self.name, answer[0].message, remedy=answer[0].remedy)
        if isinstance(answer[0], BaseException):
            raise answer[0]
        return json.loads(json.dumps(answer[0]))

    @contextlib.contextmanager
    def live_run(self, run: str, workdir: Path) -> Iterator[None]:
        """A run whose supervisor is this process, as the host and those that share the folder see it."""
        marker = mark(str(self.state), os.fsencode(workdir), run, self.name, os.getpid())
        try:
            yield
        finally:
            Path(os.fsdecode(marker)).unlink()


def project_at(root: Path) -> Project:
    root.mkdir(exist_ok=True)
    return Project(root=root, subfolder="", options={}, fixed_id="fixed")


def push(root: Path, *hosts: FakeHost, subfolder: str = "") -> SyncResult:
    """Scan a folder and sync it, all of it as code."""
    return sync(list(hosts), tree_of(root), workdir="/nowhere", subfolder=subfolder)  # type: ignore[arg-type]


def tree_of(root: Path) -> Tree:
    """A folder as it is, all of it as code, as if git tracked it; manifests of earlier syncs are kept beside it."""
    tree = project_tree(root)
    entries = tuple(manifest.sort_entries((*tree.entries, *tree.data)))
    encoded = manifest.encode(entries)
    code = replace(tree, entries=entries, manifest=encoded, digest=digest_of(encoded))
    return replace(code, data=(), data_manifest=b"", data_digest="")


def project_tree(root: Path) -> Tree:
    """A folder as it is, with code and data; manifests of earlier syncs are kept beside it."""
    return replace(scan(project_at(root)), history=ManifestHistory(folder=root.with_name(root.name + ".synced")))


def write(root: Path, **files: str) -> None:
    """``write(root, **{"pkg/a.py": "text"})``."""
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def content(root: Path) -> dict[str, str]:
    """Every file and link below a folder but what sync keeps there for itself."""
    found = {}
    own = root / os.fsdecode(LIVE_FOLDER)
    for path in sorted(path for path in root.rglob("*") if path != own and own not in path.parents):
        if path.is_symlink():
            found[path.relative_to(root).as_posix()] = f"-> {path.readlink()}"
        elif path.is_file():
            found[path.relative_to(root).as_posix()] = path.read_text(errors="surrogateescape")
    return found


def synced(root: Path, *hosts: FakeHost, take: str = "") -> SyncResult:
    return sync(list(hosts), project_tree(root), workdir="/nowhere", take=take)  # type: ignore[arg-type]
