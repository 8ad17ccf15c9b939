"""The manifests of a project's latest syncs, kept in it: a host that has one of them is sent how the new one differs.

``.clusterddp/synced/DIGEST`` is a manifest as it was sent. Without them each host says what it has, and gets all.
"""

from __future__ import annotations

import contextlib
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING

from clusterddp import project_folder
from clusterddp.errors import UsageError
from clusterddp.remote.shared.wire.chunks import digest_of, is_digest

if TYPE_CHECKING:
    from pathlib import Path

FOLDER = "synced"
_MOST = 8  # manifests, of code and of data: of the branches that somebody goes between


@dataclass(frozen=True, kw_only=True, slots=True)
class Earlier:
    """Those in ``folder``; None keeps none."""

    folder: Path | None = None

    def digests(self) -> list[str]:
        """Of those that are kept, the latest first."""
        try:
            found = [path for path in self.folder.iterdir() if is_digest(path.name)] if self.folder else []
            return [path.name for path in sorted(found, key=lambda path: path.stat().st_mtime_ns, reverse=True)]
        except OSError:  # then the host says what it has
            return []

    def read(self, digest: str) -> bytes | None:
        """The bytes of one; None where it is not kept, or damaged."""
        if self.folder is None or not is_digest(digest):  # a host has said it
            return None
        try:
            data = project_folder.read(project_folder.own(self.folder.parent, self.folder.name) / digest)
        except (OSError, UsageError):
            return None
        return data if digest_of(data) == digest else None

    def keep(self, digest: str, data: bytes) -> None:
        """Keep one more, and forget the oldest; a project that cannot be written keeps nothing."""
        if self.folder is None or not self.folder.parent.is_dir():
            return
        with contextlib.suppress(OSError, UsageError):
            project_folder.own(self.folder.parent, self.folder.name).mkdir(mode=0o700, exist_ok=True)
            target = self.folder / digest
            if not target.exists():
                with project_folder.unfinished(self.folder.parent, [data], durable=False) as new:
                    new.replace(target)
            os.utime(target)
            for old in self.digests()[_MOST:]:
                (self.folder / old).unlink(missing_ok=True)
