"""What a transfer to hosts is asked for: each host's part of it, and whether hosts pass chunks on to each other."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from clusterddp.remote.shared.schema.record import to_fields

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from clusterddp.hosts.client import Host
    from clusterddp.remote.shared.user_files.file_records import PushRequest
    from clusterddp.remote.shared.wire.chunks import Chunk
    from clusterddp.remote.shared.workdir.sync_records import SyncRequest
    from clusterddp.sync.transfer.upload import Uploads


@dataclass(frozen=True, kw_only=True, slots=True)
class TransferOptions:
    """Whether hosts pass chunks on, and how fast."""

    # ``auto``: if it saves time; ``on``: always, and hosts with a live run pass on too; ``off``: never
    mode: str = "auto"
    rate: int | None = None  # the most bytes per second that each host sends; None: no limit
    notify: Callable[[str], None] = lambda _line: None  # called with a line for the user


AUTO = TransferOptions()


class TransferTask(Protocol):
    """One host's part of a transfer."""

    name: str
    host: Host
    operation: str
    manifest_part: bytes | None  # the part of the manifest that is sent; None: all

    @property
    def order(self) -> SyncRequest | PushRequest:
        """The operation's arguments, but for what is sent."""

    def lacking(self, uploads: Uploads) -> Sequence[Chunk]:
        """The chunks that the host has nowhere."""

    def take(self, answer: Any) -> None:
        """Read the operation's result; ``HelperError`` if it is damaged."""


def arguments(job: TransferTask, uploads: Uploads, *, spread: bool) -> dict[str, Any]:
    """Return the operation's arguments, with the sizes of what is sent; ``spread``: other hosts send chunks too."""
    sizes = uploads.sizes(job.manifest_part)
    return to_fields(job.order._replace(manifest=sizes.manifest, chunk_lists=sizes.chunk_lists, spread=spread))
