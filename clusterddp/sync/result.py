"""What a sync did, host by host, and what a user should know of it. Values, no I/O."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from clusterddp.sync.transfer import PATIENCE
from clusterddp.text.folding import folded_names
from clusterddp.text.paths import shown
from clusterddp.text.units import human_duration, human_size

if TYPE_CHECKING:
    from collections.abc import Mapping


@dataclass(frozen=True, kw_only=True, slots=True)
class KeptFile:
    """A file changed on a host, and the name it was kept as; the same name: it stays, and is no longer synced."""

    path: str
    kept_as: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Changes:
    """Paths that a sync puts on a host for the first time, replaces and removes."""

    new: tuple[str, ...] = ()
    changed: tuple[str, ...] = ()
    gone: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.new or self.changed or self.gone)


@dataclass(frozen=True, kw_only=True, slots=True)
class HostSync:
    """What syncing did on one host.

    Attributes:
        name: The host.
        workdir: The folder that holds the code now, absolute.
        digest: The digest of the code, proved there.
        sent: Files sent.
        sent_bytes: Their bytes, before compression.
        removed: Files removed there.
        changes: The paths that this is, or would be, about.
        kept: The host's own versions that were in the way.
        told: What a user should know of the folder: which runs are live there, links that lead nowhere.
    """

    name: str
    workdir: str
    digest: str
    sent: int = 0
    sent_bytes: int = 0
    removed: int = 0
    kept: tuple[KeptFile, ...] = ()
    told: tuple[str, ...] = ()
    changes: Changes = Changes()


@dataclass(frozen=True, kw_only=True, slots=True)
class SyncResult:
    """Every host's part, in the order given; all hold ``digest``. ``seconds``: how long it took."""

    digest: str
    hosts: tuple[HostSync, ...]
    seconds: float = 0.0

    @property
    def workdirs(self) -> Mapping[str, str]:
        """Host name → workdir."""
        return {host.name: host.workdir for host in self.hosts}

    @property
    def notices(self) -> tuple[str, ...]:
        """One line for everything a user should know, the same of several hosts once."""
        lines: dict[str, list[str]] = {}
        for host in self.hosts:
            for line in (*host.told, *map(_kept_line, host.kept)):
                lines.setdefault(line, []).append(host.name)
        told = [f"{folded_names(names)}: {line}" for line, names in lines.items()]
        sent = [host.sent_bytes for host in self.hosts if host.sent_bytes]
        if sent and self.seconds >= PATIENCE:
            count = f"{len(sent)} host{'' if len(sent) == 1 else 's'}"
            told.append(f"synced {human_size(sum(sent))} to {count} in {human_duration(self.seconds)}")
        return tuple(told)


def _kept_line(kept: KeptFile) -> str:
    if kept.path == kept.kept_as:
        return f"{shown(kept.path)} was changed on the host and is no longer in the project: it stays there"
    return f"{shown(kept.path)} on the host was not the project's: kept as {shown(kept.kept_as)}"
