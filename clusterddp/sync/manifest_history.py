"""Keeps the manifests of a project's latest syncs, so that a host that has one of them is sent only the difference.

``.clusterddp/synced/DIGEST`` is a manifest as it was sent.
"""

from __future__ import annotations

import contextlib
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING

from clusterddp.errors import UsageError
from clusterddp.project import project_folder
from clusterddp.remote.shared.wire.chunks import digest_of, is_digest

if TYPE_CHECKING:
    from pathlib import Path

FOLDER = "synced"
_MAX_MANIFESTS = 8  # of code and of data: enough to switch between a few branches


@dataclass(frozen=True, kw_only=True, slots=True)
class ManifestHistory:
    """The manifests of earlier syncs, kept in ``folder``; with None nothing is kept."""

    folder: Path | None = None

    def digests(self) -> list[str]:
        """The digests of the manifests that are kept, the latest first."""
        try:
            paths = [path for path in self.folder.iterdir() if is_digest(path.name)] if self.folder else []
            return [path.name for path in sorted(paths, key=lambda path: path.stat().st_mtime_ns, reverse=True)]
        except OSError:  # without them hosts list what they have
            return []

    def read(self, digest: str) -> bytes | None:
        """Return the bytes of a manifest; None if it is not kept, or damaged."""
        if self.folder is None or not is_digest(digest):  # a host may send anything
            return None
        try:
            data = project_folder.read(project_folder.real_folder(self.folder.parent, self.folder.name) / digest)
        except (OSError, UsageError):
            return None
        return data if digest_of(data) == digest else None

    def keep(self, digest: str, data: bytes) -> None:
        """Keep a manifest and remove the oldest; in a project that cannot be written nothing is kept."""
        if self.folder is None or not self.folder.parent.is_dir():
            return
        with contextlib.suppress(OSError, UsageError):
            project_folder.real_folder(self.folder.parent, self.folder.name).mkdir(mode=0o700, exist_ok=True)
            target = self.folder / digest
            if self.read(digest) is None:
                with project_folder.unfinished_file(self.folder.parent, [data], durable=False) as new:
                    new.replace(target)
            os.utime(target)
            for old in self.digests()[_MAX_MANIFESTS:]:
                (self.folder / old).unlink(missing_ok=True)
