"""The data of a sync's uploads: the manifest and the contents some hosts lack, packed once for all of them.

Not here: who lacks what (sync/push.py); how a host reads it (remote/shared/sync_stream.py).
"""

from __future__ import annotations

import hashlib
import os
import tempfile
import threading
import zlib
from dataclasses import dataclass
from typing import IO, TYPE_CHECKING, Any

from clusterddp.errors import SyncError
from clusterddp.remote.shared import manifest
from clusterddp.remote.shared.manifest import Entry, on_disk
from clusterddp.remote.shared.sync_stream import PLAIN, ZLIB, heading
from clusterddp.sync.transfer import Transfer
from clusterddp.text.paths import shown

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from clusterddp.sync.files import Tree

_PIECE = 60 * 1024
_SAMPLE = 1 << 20
_PAYS = 0.7  # compress when a sample shrinks below this
_WORTH = 64 * 1024  # bytes below which nothing is gained


@dataclass(frozen=True, kw_only=True, slots=True)
class Upload:
    """The data of one upload, in an unnamed file, read by many threads at once."""

    file: IO[bytes]
    size: int
    manifest_size: int
    encoding: str

    def pieces(self) -> Iterator[bytes]:
        """The data, a frame's worth at a time."""
        for start in range(0, self.size, _PIECE):
            yield os.pread(self.file.fileno(), min(_PIECE, self.size - start), start)


class Uploads:
    """Uploads by content, each made once; they take disk space until ``close``."""

    def __init__(self, tree: Tree, progress: Callable[[str], None] = lambda _: None) -> None:
        self._tree, self._progress = tree, progress
        self._manifest = manifest.encode(tree.entries)
        self._packs: dict[tuple[tuple[Entry, ...], bool], Upload] = {}
        self._files: list[IO[bytes]] = []
        self._lock = threading.Lock()

    def close(self) -> None:
        """Remove the temporary files."""
        for file in self._files:
            file.close()

    def get(self, needs: tuple[Entry, ...], *, compress: bool) -> Upload:
        """The pack of these contents; made at the first use."""
        with self._lock:
            if (needs, compress) not in self._packs:
                self._packs[needs, compress] = self._make(needs, compress=compress)
            return self._packs[needs, compress]

    def _make(self, needs: tuple[Entry, ...], *, compress: bool) -> Upload:
        total = len(self._manifest) + sum(entry.size for entry in needs)
        deflate = zlib.compressobj(1) if compress and total > _WORTH and self._shrinks(needs) else None
        out = tempfile.TemporaryFile()  # noqa: SIM115 - close() closes it
        try:
            self._fill(out, needs, deflate)
        except OSError as error:
            raise SyncError(
                f"no room for the upload on this machine ({error.strerror})", remedy="set TMPDIR"
            ) from error
        finally:
            self._files.append(out)
        encoding = ZLIB if deflate else PLAIN
        return Upload(file=out, size=out.tell(), manifest_size=len(self._manifest), encoding=encoding)

    def _fill(self, out: IO[bytes], needs: tuple[Entry, ...], deflate: Any) -> None:
        packing = Transfer("packing", self._progress)
        packing.expect(len(self._manifest) + sum(len(heading(e.path, e.size)) + e.size for e in needs))
        for piece in packing.counted(self._plain(needs)):
            out.write(deflate.compress(piece) if deflate else piece)
        out.write(deflate.flush() if deflate else b"")
        out.flush()

    def _shrinks(self, needs: tuple[Entry, ...]) -> bool:
        sample = bytearray()
        for piece in self._plain(needs):
            sample += piece
            if len(sample) >= _SAMPLE:
                break
        return len(zlib.compress(sample, 1)) < _PAYS * len(sample)

    def _plain(self, needs: tuple[Entry, ...]) -> Iterator[bytes]:
        yield self._manifest
        for entry in needs:
            yield heading(entry.path, entry.size)
            yield from _content(self._tree.root, entry)


def _content(root: Path, entry: Entry) -> Iterator[bytes]:
    """Exactly the bytes that were hashed; what was appended since is the next sync's."""
    hashed, left = hashlib.sha256(), entry.size
    try:
        with open(os.path.join(os.fsencode(root), on_disk(entry.path)), "rb") as stream:  # noqa: PTH118, PTH123 - bytes
            while left and (data := stream.read(min(left, _SAMPLE))):
                hashed.update(data)
                left -= len(data)
                yield data
    except OSError as error:
        raise SyncError(f"{shown(entry.path)}: cannot be read ({error.strerror})", remedy="run again") from error
    if left or hashed.hexdigest() != entry.content:
        raise SyncError(f"{shown(entry.path)} changed while it was synced", remedy="run again")
