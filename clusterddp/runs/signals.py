"""The result of sending a signal to a run's workers: which received it, and which did not and why."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from clusterddp.errors import UsageError
from clusterddp.remote.shared.processes.process_records import SignalReport
from clusterddp.remote.shared.schema.record import read_records

# Signals that a script may handle by itself. Those that end a run are left to `stop`.
SIGNALS = ("SIGUSR1", "SIGUSR2", "SIGHUP", "SIGALRM", "SIGCONT", "SIGWINCH")


@dataclass(frozen=True, kw_only=True, slots=True)
class Signalled:
    """A worker that a signal was for; ``why`` says why it was not sent, and is empty if it was."""

    rank: int
    host: str
    local_rank: int
    pid: int
    why: str


def signal_name(text: str) -> str:
    """Return the full name, such as ``SIGUSR1`` for ``USR1``, ``usr1`` or ``SIGUSR1``; raises UsageError."""
    name = "SIG" + str(text).upper().removeprefix("SIG")
    if name in SIGNALS:
        return name
    if name in {"SIGTERM", "SIGINT", "SIGKILL", "SIGQUIT"}:
        raise UsageError(f"{name} would end the workers and not the run", remedy="use `clusterddp stop`")
    known = ", ".join(signal.removeprefix("SIG") for signal in SIGNALS)
    raise UsageError(f"{text!r} is no signal that a script is told by", remedy=f"use one of {known}")


def read(host: str, workers: Any) -> list[Signalled]:
    """Decode a host's answer to the operation ``signal``; raises DamagedError."""
    return [Signalled(host=host, **one._asdict()) for one in read_records(SignalReport, workers, "workers")]
