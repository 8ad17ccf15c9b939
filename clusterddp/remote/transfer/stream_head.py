"""The head of a sync or push, before its chunks: the manifest, whole or as a difference, and the lists of chunks."""

from typing import Dict, List, Tuple

from ..shared.wire.chunk_stream import BadStream, ChunkStream
from ..shared.wire.chunks import digest_of
from ..shared.wire.frames import parse_json
from ..shared.workdir import manifest
from ..shared.workdir.manifest import Entry
from ..shared.workdir.manifest_difference import apply_difference
from ..system.bootstrap import Refused

AGAIN = "sync again"  # a remedy


def read_head(incoming: ChunkStream, size: int, chunk_lists: int) -> Tuple[bytes, Dict[str, List[str]]]:
    """Read a manifest as it was sent (or two, one after the other), and the chunks of each content that has several.

    ``size`` and ``chunk_lists`` are their bytes. Raises Refused if they arrived damaged.
    """
    try:
        head = incoming.content(size + chunk_lists)
        return head[:size], dict(parse_json(head[size:]))
    except (BadStream, ValueError, TypeError) as error:
        raise Refused("the manifest came damaged: %s" % error, AGAIN) from error


def manifest_of(sent: bytes, digest: str, base: bytes = b"") -> bytes:
    """The manifest of ``digest`` from what was sent: its difference from ``base``; raises Refused."""
    try:
        data = apply_difference(base, sent)
    except manifest.BadManifest as error:
        raise Refused(str(error), AGAIN) from error
    if digest_of(data) != digest:
        raise Refused("the manifest came damaged", AGAIN)
    return data


def entries_of(data: bytes) -> List[Entry]:
    """The entries of a manifest, each checked; raises Refused if a path would lead out of the folder."""
    try:
        return manifest.decode(data)
    except manifest.BadManifest as error:
        raise Refused(str(error)) from error


def read_entries(
    incoming: ChunkStream, size: int, chunk_lists: int, digest: str
) -> Tuple[List[Entry], Dict[str, List[str]]]:
    """Read the entries of a manifest that was sent whole, and the chunks of each content that has several.

    ``size`` and ``chunk_lists`` are their bytes, ``digest`` the manifest's. Raises Refused if they arrived damaged, or
    a path would lead out of the folder.
    """
    sent, chunks = read_head(incoming, size, chunk_lists)
    return entries_of(manifest_of(sent, digest)), chunks
