"""A signal sent to a run's workers, as the hosts tell it: who got it, and who did not and why."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from clusterddp.errors import HelperError, UsageError
from clusterddp.remote.shared.schema.fields import Fields

if TYPE_CHECKING:
    from collections.abc import Iterable

# What a script may handle by itself. Those that end a run are `stop`'s.
SIGNALS = ("SIGUSR1", "SIGUSR2", "SIGHUP", "SIGALRM", "SIGCONT", "SIGWINCH")


@dataclass(frozen=True, kw_only=True, slots=True)
class Signalled:
    """One worker; ``why`` it was not sent, empty where it was."""

    rank: int
    host: str
    local_rank: int
    pid: int
    why: str


def signal_name(text: str) -> str:
    """``SIGUSR1`` of ``USR1``, ``usr1`` or ``SIGUSR1``.

    Raises:
        UsageError: it is no signal that may be sent.
    """
    name = "SIG" + text.upper().removeprefix("SIG")
    if name in SIGNALS:
        return name
    if name in {"SIGTERM", "SIGINT", "SIGKILL", "SIGQUIT"}:
        raise UsageError(f"{name} would end the workers and not the run", remedy="use `clusterddp stop`")
    known = ", ".join(signal.removeprefix("SIG") for signal in SIGNALS)
    raise UsageError(f"{text!r} is no signal that a script is told by", remedy=f"use one of {known}")


def read(host: str, workers: Iterable[Any]) -> list[Signalled]:
    """What a host's ``signal`` operation told.

    Raises:
        HelperError: it told something else.
    """

    def damaged(what: str) -> HelperError:
        return HelperError(host, f"its answer to a signal is damaged: {what}")

    return [_worker(host, Fields(told, error=damaged)) for told in workers]


def _worker(host: str, told: Fields) -> Signalled:
    return Signalled(
        rank=told.number("rank"),
        host=host,
        local_rank=told.number("local_rank"),
        pid=told.number("pid"),
        why=told.text("why"),
    )
