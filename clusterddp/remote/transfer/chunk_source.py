"""What brings the chunks of an operation: the operator alone, or other hosts too."""

from ..helper.request import Request
from ..shared.wire.chunk_stream import ChunkStream, Incoming


def chunk_stream(request: Request) -> ChunkStream:
    """The operator's stream, with other hosts' beside it where the operation's args say ``spread``."""
    if not request.args.get("spread"):
        return Incoming(request.read)
    from .host_to_host import (
        HostToHostChunks,  # it brings along what a run's spool needs: more than all of a plain sync
    )

    return HostToHostChunks(request)
