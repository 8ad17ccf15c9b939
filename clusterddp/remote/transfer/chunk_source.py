"""Where an operation's chunks come from: the operator alone, or other hosts too."""

from ..helper.request import Request
from ..shared.wire.chunk_stream import ChunkStream, Incoming


def chunk_stream(request: Request, *, spread: bool) -> ChunkStream:
    """The operator's stream; with ``spread`` combined with other hosts'."""
    if not spread:
        return Incoming(request.read)
    from .host_to_host import (
        HostToHostChunks,  # it brings along what a run's spool needs: more than all of a plain sync
    )

    return HostToHostChunks(request)
