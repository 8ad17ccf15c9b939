"""Sends files to several hosts at once: to each from here, or passed on from host to host if that is faster."""

from __future__ import annotations

from typing import TYPE_CHECKING

from clusterddp.errors import SyncError
from clusterddp.hosts.answers import PATHS_LIMIT
from clusterddp.hosts.fanout import each, values
from clusterddp.sync.transfer.transfer_task import arguments

if TYPE_CHECKING:
    from collections.abc import Sequence

    from clusterddp.remote.shared.wire.chunks import Chunk
    from clusterddp.sync.transfer.progress_rate import Transfer
    from clusterddp.sync.transfer.transfer_task import TransferOptions, TransferTask
    from clusterddp.sync.transfer.upload import Uploads

MIN_SAVING = 16 << 20  # hosts pass chunks on only if more bytes than this would be sent repeatedly


def send(jobs: Sequence[TransferTask], uploads: Uploads, transfer: Transfer, spread: TransferOptions) -> None:
    """Send every host what it lacks, all at once, and let each job read its host's answer.

    Raises ``HostError`` or ``HostsError`` if hosts failed, ``SyncError`` if a file changed while it was sent.
    """
    lacking = {job.name: dict.fromkeys(job.lacking(uploads)) for job in jobs}
    sizes = [sum(chunk.size for chunk in chunks) for chunks in lacking.values()]
    transfer.expect(sum(sizes))
    once = sum(chunk.size for chunk in {chunk for chunks in lacking.values() for chunk in chunks})
    if spread.mode == "off" or len(jobs) < 2 or (spread.mode == "auto" and sum(sizes) - once < MIN_SAVING):
        outcomes = each(jobs, lambda job: _send_directly(job, uploads, transfer, tuple(lacking[job.name])))
    else:
        # Most syncs send too little for it, and do not wait for its import.
        from clusterddp.sync.transfer.between_hosts import HostToHostTransfer  # noqa: PLC0415

        outcomes = HostToHostTransfer(jobs, uploads, transfer, spread, lacking).run()
    for outcome in outcomes:
        if isinstance(outcome.error, SyncError):  # a local error, which concerns every host
            raise outcome.error
    values(outcomes)


def _send_directly(job: TransferTask, uploads: Uploads, transfer: Transfer, lacking: Sequence[Chunk]) -> None:
    """Send one host its chunks from here."""
    pieces = uploads.pieces(lacking, compress=job.host.entry.connection != "local", part=job.manifest_part)
    args = arguments(job, uploads, spread=False)
    job.take(job.host.upload(job.operation, args, transfer.counted(pieces), limit=PATHS_LIMIT))
