"""Every error a user can meet, and the exit code of each.

Each renders as one line: what, where, the value, the remedy. Anything else that escapes is a bug.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence

EXIT_FAILED = 1  # a check, host or command failed
EXIT_USAGE = 2  # usage or inventory error, everywhere but in run and logs --follow


class ClusterddpError(Exception):
    """The base of all errors a user can meet.

    ``message``: what is wrong, with the value; one line, no full stop. ``remedy``: what to do about it; one line, or
    empty.
    """

    exit_code = EXIT_FAILED

    def __init__(self, message: str, *, remedy: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.remedy = remedy

    def __str__(self) -> str:
        return f"{self.message}; {self.remedy}" if self.remedy else self.message

    def __reduce__(self) -> tuple[Any, ...]:
        """Let another process, such as the parent of a pool's worker, receive it: without calling ``__init__``."""
        return _rebuilt, (type(self), self.args, self.__dict__)


def _rebuilt(kind: type[ClusterddpError], args: tuple[Any, ...], fields: dict[str, Any]) -> ClusterddpError:
    """Build an error again from its pickled class, arguments and attributes."""
    error = kind.__new__(kind, *args)
    error.__dict__.update(fields)
    return error


class UsageError(ClusterddpError):
    """The command line or a setting is wrong."""

    exit_code = EXIT_USAGE


class InventoryError(UsageError):
    """The inventory is wrong at ``where`` (``file:line:key``)."""

    def __init__(self, message: str, *, where: str = "", remedy: str = "") -> None:
        super().__init__(f"{where}: {message}" if where else message, remedy=remedy)
        self.where = where


class HostError(ClusterddpError):
    """One host failed.

    ``trace`` is the host's traceback where our code there raised what it did not expect: a bug of ours.
    """

    def __init__(self, host: str, message: str, *, remedy: str = "", trace: str = "") -> None:
        super().__init__(f"{host}: {message}", remedy=remedy)
        self.host = host
        self.trace = trace


class UnreachableError(HostError):
    """No connection to the host: its name, the network, or a timeout."""


class HostKeyError(HostError):
    """The host's key is unknown or has changed.

    ``fingerprint`` (``ssh-ed25519 SHA256:…``) and ``known_hosts_line`` are set for an unknown key, and ``jump_host`` if
    that is the key of a jump host before the host.
    """

    jump_host = ""

    def __init__(
        self, host: str, message: str, *, remedy: str = "", fingerprint: str = "", known_hosts_line: str = ""
    ) -> None:
        super().__init__(host, message, remedy=remedy)
        self.fingerprint = fingerprint
        self.known_hosts_line = known_hosts_line


class AuthenticationError(HostError):
    """The host refused our keys."""


class HelperError(HostError):
    """Our helper could not start, or an operation failed on the host."""


class NoPythonError(HelperError):
    """The host has no Python that our helper could start with."""


class HostsError(ClusterddpError):
    """Several hosts failed; renders the first and counts the rest."""

    def __init__(self, errors: Sequence[ClusterddpError]) -> None:
        first, *rest = errors
        more = f" (and {len(rest)} more)" if rest else ""
        super().__init__(first.message + more, remedy=first.remedy)
        self.errors = tuple(errors)


def single_errors(error: ClusterddpError) -> tuple[ClusterddpError, ...]:
    """Return the errors that a HostsError combines, or the error itself if it is another one."""
    return error.errors if isinstance(error, HostsError) else (error,)


def one_error(errors: Sequence[ClusterddpError]) -> ClusterddpError:
    """Return the error itself if all are the same, or a HostsError that combines several."""
    return errors[0] if len(set(map(str, errors))) == 1 else HostsError(errors)


class ScriptError(ClusterddpError):
    """The script itself is wrong, found before anything is started: the one fault in a start that is the script's."""


class SyncError(ClusterddpError):
    """The project cannot be synced, or a host's copy is not the plan's."""


class LockError(ClusterddpError):
    """``clusterddp_environment`` names a lock (``written``) of which no environment can be made."""

    def __init__(self, written: str, message: str, *, remedy: str = "") -> None:
        super().__init__(f"environment {written}: {message}", remedy=remedy)
        self.written = written


class PlanError(ClusterddpError):
    """These hosts cannot hold this run."""


class RunError(ClusterddpError):
    """A run cannot be found, or is in the wrong state for this."""


class RunRemovedError(RunError):
    """A run's hosts answer, and none of them knows it any more."""


class DiscoverError(ClusterddpError):
    """Machines did not find each other on their network segment."""
