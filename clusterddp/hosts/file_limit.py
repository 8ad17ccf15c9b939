"""Make room for the connections to many hosts: each takes open files, of which a process may have only so many."""

from __future__ import annotations

import contextlib
import resource
from typing import TYPE_CHECKING

from clusterddp.errors import UsageError
from clusterddp.remote.shared.text.counted import counted

if TYPE_CHECKING:
    from collections.abc import Collection

    from clusterddp.inventory import HostEntry

OWN_FILES = 128  # that a command opens besides: modules, logs, and an agent's socket for each login at a time
SOCKET_FILES = 1  # of a connection of our own
CHILD_FILES = 3  # of one through a child process, the ``ssh`` program or a local helper: its three pipes
KEPT_FILES = 4  # of one over a kept connection: the same, and the master's control socket
OPENING_FILES = 384  # of those that are being opened, up to 48 at a time: the other ends of their pipes


def make_room(entries: Collection[HostEntry]) -> None:
    """Let this process open as many files as connections to these hosts need.

    The soft limit is raised where it is too low, for which nobody need be asked. Raises UsageError if the hard limit is
    too low as well.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = OWN_FILES + OPENING_FILES + KEPT_FILES * len(entries)  # which of them need less is found out later
    if _is_enough(soft, most):
        return
    least = OWN_FILES + sum(_files_of(entry) for entry in entries)
    wanted = most if _is_enough(hard, most) else hard
    if not _is_enough(soft, wanted):
        with contextlib.suppress(ValueError, OSError):  # macOS has another, lower limit
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    allowed = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    if not _is_enough(allowed, least):
        raise UsageError(
            f"{counted(len(entries), 'host')} need {least} open files, and only {allowed} are allowed here"
            " (`ulimit -Hn`)",
            remedy=f"take fewer hosts by --limit, or have the limit raised: as root `ulimit -n {most}` before this"
            f" command, or a line `* - nofile {most}` in /etc/security/limits.conf",
        )


def _files_of(entry: HostEntry) -> int:
    by_child = entry.connection == "local" or entry.transport == "openssh"
    return CHILD_FILES if by_child else SOCKET_FILES


def _is_enough(limit: int, files: int) -> bool:
    return limit == resource.RLIM_INFINITY or (files != resource.RLIM_INFINITY and limit >= files)
