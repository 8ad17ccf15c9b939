"""Sends wheels to hosts like any files: in chunks, resumed if interrupted, and from host to host if that is faster."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from clusterddp.remote.shared.wire.chunks import content_of, hash_file
from clusterddp.remote.shared.workdir.manifest import FILE, Entry
from clusterddp.sync.deliver import deliver
from clusterddp.sync.transfer.upload import Files, Uploads

if TYPE_CHECKING:
    from collections.abc import Sequence

    from clusterddp.environments.wheels import Wheel
    from clusterddp.hosts.client import Host
    from clusterddp.sync.transfer.progress_rate import Transfer
    from clusterddp.sync.transfer.transfer_task import TransferOptions


def send_wheels(
    hosts: Sequence[Host], wheels: Sequence[Wheel], workdir: str, transfer: Transfer, spread: TransferOptions
) -> None:
    """Send these wheels to every host; ``SyncError`` if one changed in the cache meanwhile."""
    entries, chunk_lists = [], {}
    for wheel in sorted(wheels, key=lambda wheel: wheel.sha256):
        size, chunks = hash_file(os.fsencode(wheel.path))
        content = content_of(chunks)
        if len(chunks) > 1:
            chunk_lists[content] = tuple(chunks)
        entries.append(Entry(wheel.sha256, FILE, False, size, content))
    paths = {wheel.sha256: os.fsencode(wheel.path) for wheel in wheels}
    deliver(
        hosts,
        Uploads(entries, chunk_lists, Files(entries, chunk_lists, lambda entry: paths[entry.path])),
        entries,
        folder={host.name: f"{host.hello.state}/environments/wheels" for host in hosts},
        workdir=workdir,
        transfer=transfer,
        overwrite=True,  # a file of that name with other content is damaged
        spread=spread,
    )
