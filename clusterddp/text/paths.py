"""Paths for messages."""

from __future__ import annotations

from clusterddp.remote.shared.workdir.manifest import on_disk


def shown(path: str) -> str:
    """A path for a message; bytes that are not UTF-8, and control characters, are escaped."""
    return "".join(c if c.isprintable() else "".join(f"\\x{byte:02x}" for byte in on_disk(c)) for c in path)
