"""What a sync did on each host, and the messages about it. Values, no I/O."""

from __future__ import annotations

import posixpath
import shlex
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from clusterddp.errors import SyncError
from clusterddp.remote.shared.text.counted import counted
from clusterddp.sync.project_files.project_tree import is_code
from clusterddp.sync.transfer.progress_rate import PROGRESS_DELAY
from clusterddp.text.folding import few, folded_names
from clusterddp.text.paths import shown
from clusterddp.text.units import human_duration, human_size

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


@dataclass(frozen=True, kw_only=True, slots=True)
class KeptFile:
    """A file changed on a host, and the path it was renamed to; the same path if it stays, no longer synced."""

    path: str
    kept_as: str
    data: bool = False  # whether the project's file there is data, not code


@dataclass(frozen=True, kw_only=True, slots=True)
class Changes:
    """Paths that a sync adds on a host, replaces and removes."""

    new: tuple[str, ...] = ()
    changed: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.new or self.changed or self.removed)


@dataclass(frozen=True, kw_only=True, slots=True)
class StandingData:
    """A host's own versions of the project's data, which are kept: path → content, empty if it was removed there."""

    versions: Mapping[str, str] = field(default_factory=dict)
    news: tuple[str, ...] = ()  # the paths that no earlier sync has reported


@dataclass(frozen=True, kw_only=True, slots=True)
class HostSync:
    """What a sync did on one host."""

    name: str
    workdir: str  # the absolute path of the folder that holds the code now
    digest: str  # the digest of the code, verified on the host
    sent: int = 0
    sent_bytes: int = 0  # their bytes, before compression
    removed: int = 0
    kept: tuple[KeptFile, ...] = ()  # the host's own versions that were in the way
    notices: tuple[str, ...] = ()  # messages about the folder: which runs are live there, broken links
    changes: Changes = Changes()  # the paths that were changed, or would be
    data: StandingData = StandingData()  # the host's own versions of data, which stay
    conflicts: tuple[str, ...] = ()  # in a preview: data that was changed both in the project and on the host


@dataclass(frozen=True, kw_only=True, slots=True)
class SyncResult:
    """The results of all hosts, in the order given; all of them hold ``digest``."""

    digest: str
    hosts: tuple[HostSync, ...]
    seconds: float = 0.0  # how long it took
    subfolder: str = ""  # of the project, where the command was given

    @property
    def workdirs(self) -> Mapping[str, str]:
        """Host name → workdir."""
        return {host.name: host.workdir for host in self.hosts}

    @property
    def standing(self) -> Mapping[str, tuple[str, ...]]:
        """Host name → the paths of data of which the host keeps its own version."""
        return {host.name: tuple(host.data.versions) for host in self.hosts if host.data.versions}

    @property
    def notices(self) -> tuple[str, ...]:
        """One line for everything a user should know; the same line of several hosts is shown once."""
        lines: dict[str, list[str]] = {}
        for host in self.hosts:
            for line in (*host.notices, *self._kept_lines(host), *_removed_lines(host.changes)):
                lines.setdefault(line, []).append(host.name)
        messages = [f"{folded_names(names)}: {line}" for line, names in lines.items()]
        messages += _standing_lines(self.hosts)
        sent = [host.sent_bytes for host in self.hosts if host.sent_bytes]
        if sent and self.seconds >= PROGRESS_DELAY:
            count = counted(len(sent), "host")
            messages.append(f"synced {human_size(sum(sent))} to {count} in {human_duration(self.seconds)}")
        return tuple(messages)

    def _kept_lines(self, host: HostSync) -> list[str]:
        return [_kept_line(kept, self.subfolder) for kept in host.kept]


def _as_typed(path: str, subfolder: str) -> str:
    """A path of the project as a user would type it in a subfolder."""
    return _as_argument(posixpath.relpath(path, subfolder or "."))


def _as_argument(path: str) -> str:
    """A path as an argument of a command, quoted for a shell; it cannot be taken for an option."""
    return shlex.quote(shown(f"./{path}" if path.startswith("-") else path))


def _kept_line(kept: KeptFile, subfolder: str) -> str:
    """The message about a file that was changed on a host."""
    if kept.path == kept.kept_as:
        return f"{shown(kept.path)} was changed on the host and is no longer in the project: it stays there"
    line = f"{shown(kept.path)} on the host was not the project's: kept as {shown(kept.kept_as)}"
    if kept.data or is_code(kept.path):
        return line
    path = _as_typed(kept.path, subfolder)
    return f"{line}; as long as git tracks it each sync puts the project's there: `git rm --cached {path}` ends that"


def _removed_lines(changes: Changes) -> list[str]:
    """A line on removed files that are not code by their names: a user may want to know of them."""
    removed = [shown(path) for path in changes.removed if not is_code(path)]
    return [f"removed, as git tracks it no more: {few(removed, 5)}"] if removed else []


def _standing_lines(hosts: Sequence[HostSync]) -> list[str]:
    """A line for each set of hosts that keep their own version of data, and one on data that differs between hosts."""
    news = dict.fromkeys(path for host in hosts for path in host.data.news)
    groups: dict[tuple[str, ...], list[str]] = {}
    for path in news:
        groups.setdefault(tuple(host.name for host in hosts if path in host.data.versions), []).append(path)
    lines = []
    for names, paths in groups.items():
        listed = few([shown(path) for path in paths], 5)
        lines.append(f"{folded_names(names)}: {listed} was changed on the host since the last sync: the host's stays")
    differing = [shown(path) for path in news if len({host.data.versions.get(path) for host in hosts}) > 1]
    return [*lines, *([f"not the same on all hosts: {few(differing, 5)}"] if differing else [])]


def refuse_conflicts(conflicts: Mapping[str, Sequence[str]], *, subfolder: str = "", name: str = "") -> None:
    """Refuse to sync while data changed both in the project and on a host needs the user's decision.

    ``conflicts`` has the paths by host. ``subfolder`` is the folder of the project in which the command was given;
    ``name`` the folder beside the workdir that is synced, which push and pull do not reach. The ``SyncError`` names the
    paths, the hosts, and what to type.
    """
    paths = list(dict.fromkeys(path for of_host in conflicts.values() for path in of_host))
    if not paths:
        return
    hosts = [host for host, of_host in conflicts.items() if of_host]
    remote_path, local_path = _as_argument(paths[0]), _as_typed(paths[0], subfolder)
    # One host is named, as files that differ between hosts would be pulled into a folder for each.
    host = next(host for host in hosts if paths[0] in conflicts[host])
    choices = (
        f"`clusterddp push --overwrite {local_path}` takes the project's,"
        f" `clusterddp pull --overwrite --host {shlex.quote(host)} {remote_path} {local_path}` that of {host};"
        " for all of them: "
    )
    raise SyncError(
        f"{few([shown(path) for path in paths], 5)}: changed in the project and on {folded_names(hosts)}"
        " since the last sync",
        remedy=f"{'' if name else choices}--take project, or --take host",
    )
