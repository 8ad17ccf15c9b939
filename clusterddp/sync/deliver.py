"""Sends files other than the project's code to a folder on hosts: data, weights, whatever a user pushes.

Nothing on the host is removed, and the host refuses to replace a file that differs and was not pushed before.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from clusterddp.errors import HostError
from clusterddp.hosts import fanout
from clusterddp.hosts.answers import Limit
from clusterddp.hosts.ask import reading_answer
from clusterddp.remote.shared.schema.record import read_record, to_fields
from clusterddp.remote.shared.user_files.file_records import PushCheck, Pushed, PushRequest
from clusterddp.remote.shared.workdir import manifest
from clusterddp.remote.shared.workdir.sync_records import read_unless_changed
from clusterddp.sync.send_code import turns
from clusterddp.sync.transfer.fetch import HASH_TIMEOUT
from clusterddp.sync.transfer.send import send
from clusterddp.sync.transfer.transfer_task import AUTO
from clusterddp.text.folding import folded_names
from clusterddp.text.paths import shown

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from clusterddp.hosts.client import Host
    from clusterddp.remote.shared.wire.chunks import Chunk
    from clusterddp.remote.shared.workdir.manifest import Entry
    from clusterddp.sync.transfer.progress_rate import Transfer
    from clusterddp.sync.transfer.transfer_task import TransferOptions
    from clusterddp.sync.transfer.upload import Uploads

_TRIES = 3  # a host's files may change between its answer and the transfer


@dataclass(frozen=True, kw_only=True, slots=True)
class Delivered:
    """What a push did on one host: the absolute path of the folder, the number of files placed, bytes of files sent."""

    name: str
    folder: str
    files: int = 0
    sent_bytes: int = 0
    kept: tuple[tuple[str, str], ...] = ()  # files that changed while the push came: path, the name they have now


def kept_lines(done: Sequence[Delivered]) -> list[str]:
    """A line for each file that changed on hosts while a push came."""
    hosts: dict[tuple[str, str], list[str]] = {}
    for host in done:
        for kept in host.kept:
            hosts.setdefault(kept, []).append(host.name)
    return [
        f"{folded_names(names)}: {shown(path)} changed while the push came: kept as {shown(kept_as)}"
        for (path, kept_as), names in hosts.items()
    ]


def deliver(
    hosts: Sequence[Host],
    uploads: Uploads,
    entries: Sequence[Entry],
    *,
    folder: str | Mapping[str, str],
    workdir: str,
    transfer: Transfer,
    overwrite: bool = False,
    spread: TransferOptions = AUTO,
) -> tuple[Delivered, ...]:
    """Put the files of ``entries`` into a folder of every host, sending each host the chunks that it lacks.

    ``folder`` is the same for all hosts or by host name: absolute, from ``~/``, or below the workdir. ``workdir`` is
    for hosts without ``clusterddp_workdir``. ``overwrite`` replaces files that differ, whoever wrote them. Raises
    ``HostError`` or ``HostsError`` if hosts failed or refused (nothing is sent if one refuses at once), ``SyncError``
    if a file changed while it was sent.
    """
    digest, sizes = manifest.digest(entries), uploads.sizes()

    def request_for(host: Host) -> PushRequest:
        return PushRequest(
            workdir=host.entry.workdir or workdir,
            dest=folder if isinstance(folder, str) else folder[host.name],
            digest=digest,
            manifest=sizes.manifest,
            chunk_lists=sizes.chunk_lists,
            overwrite=overwrite,
            links=dict(host.entry.links),
        )

    jobs = [_HostPush(host, uploads, entries, request_for(host)) for host in hosts]
    for _ in range(_TRIES):
        waiting = [job for job in jobs if not job.done]
        fanout.values(fanout.each(waiting, _HostPush.ask))
        waiting = [job for job in jobs if not job.done]
        if not waiting:
            break
        for number, turn in enumerate(turns(waiting)):
            if number:  # a host that shares a folder with an earlier one has everything now
                fanout.values(fanout.each(turn, _HostPush.ask))
            send([job for job in turn if not job.done], uploads, transfer, spread)
    for job in jobs:
        if not job.done:
            raise HostError(job.name, f"{job.folder} changes while it is sent", remedy="see what writes there")
    return tuple(job.delivered for job in jobs)


class _HostPush:
    """The push to one host: a ``TransferTask``."""

    operation = "push_apply"
    manifest_part: bytes | None = None

    def __init__(self, host: Host, uploads: Uploads, entries: Sequence[Entry], order: PushRequest) -> None:
        self.name, self.folder = host.name, ""
        self.shared: str | None = None
        self.done = False
        self.files = self.sent_bytes = 0
        self._kept: tuple[tuple[str, str], ...] = ()
        self.host, self._uploads, self._entries, self.order = host, uploads, entries, order
        self._lacking: tuple[Chunk, ...] = ()
        self._compress = host.entry.connection != "local"

    @property
    def delivered(self) -> Delivered:
        """What the push did."""
        return Delivered(
            name=self.name, folder=self.folder, files=self.files, sent_bytes=self.sent_bytes, kept=self._kept
        )

    def lacking(self, _uploads: Uploads) -> tuple[Chunk, ...]:
        """The chunks to send."""
        return self._lacking

    def ask(self) -> None:
        """Ask what the host lacks; sets ``done`` if it has everything."""
        pieces = (piece for piece, _ in self._uploads.pieces((), compress=self._compress))
        files = (entry for entry in self._entries if entry.kind == manifest.FILE)
        chunks = dict.fromkeys(chunk for entry in files for chunk in self._uploads.chunks(entry))
        order, limit = to_fields(self.order), Limit.of_files(len(chunks))
        answer = self.host.upload("push_check", order, pieces, timeout=HASH_TIMEOUT, limit=limit)
        with reading_answer(self.name):
            check = read_record(PushCheck, answer, "answer")
        self.folder, self.shared, self.done = check.root, check.shared, check.ready
        lacking = set(check.lacking)
        self._lacking = tuple(chunk for chunk in chunks if chunk.digest in lacking)

    def take(self, answer: Any) -> None:
        """Read the host's answer to what was sent."""
        with reading_answer(self.name):
            pushed = read_unless_changed(Pushed, answer)
        self.done = pushed is not None
        self.files = pushed.sent if pushed else 0
        self._kept = pushed.kept if pushed else ()
        self.sent_bytes = sum(chunk.size for chunk in self._lacking)
