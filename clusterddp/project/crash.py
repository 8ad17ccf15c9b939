"""Crash files: reports of bugs in clusterddp itself, for those who fix them.

One file per crash in the project's ``.clusterddp/crashes/``, 0600, the last MAX_FILES of them: versions, the command,
our traceback and those that hosts have sent. Values of secrets are left out.
"""

from __future__ import annotations

import contextlib
import os
import platform
import shlex
import sys
import threading
import traceback
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING

from clusterddp.errors import HostsError
from clusterddp.project.project import find, short_path
from clusterddp.remote.shared.text.redaction import Redaction, hide_url_passwords
from clusterddp.remote.shared.text.secret_names import is_secret, without_secret_words

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from clusterddp.errors import HostError
    from clusterddp.project.project import Project

FOLDER = "crashes"
MAX_FILES = 20  # crash files kept
MAX_FILES_OF_HOSTS = 5  # written by one process for bugs of hosts: their tracebacks must not displace its own
MAX_SUMMARY = 300  # characters of an exception in a summary
LIBRARIES = ("click", "fabric", "paramiko", "cryptography", "pyyaml", "rich", "jinja2")
MIN_SECRET = 8  # characters; a shorter value in our environment is no secret, whatever its variable's name
_secrets: set[str] = set()
_write_lock = threading.Lock()
_files_by_trace: dict[str, Path] = {}  # a host's traceback → its crash file


def hide_secrets(values: Iterable[str]) -> None:
    """Keep these secret values out of every crash file and log of this process."""
    _secrets.update(value for value in values if value)


def write_crash(
    error: BaseException, *, during: str = "", argv: Sequence[str] | None = None, project: Project | None = None
) -> Path | None:
    """Write a crash file; return its path, or None if it cannot be written. Raises nothing.

    ``error``: the exception; hosts' tracebacks are taken from it, its causes and its parts. ``during``: what was being
    done, a few words, such as a check's name. ``argv``: the command's words after ``clusterddp``; None for this
    process's. ``project``: whose ``.clusterddp``; None for the current folder's.
    """
    with contextlib.suppress(Exception):  # a second bug must not hide the first
        text = crash_text(error, during=during, argv=argv)
        now = datetime.now(timezone.utc).strftime("%Y%m%dT%H%M%S.%f")
        path = (project or find()).write(f"{FOLDER}/{now}-{os.getpid()}.txt", text.encode(errors="replace"))
        for old in sorted(path.parent.glob("*.txt"))[:-MAX_FILES]:
            old.unlink(missing_ok=True)
        return path
    return None


def crash_of_host(error: HostError) -> str:
    """Write a crash file of a bug that a host reported; return the remedy for the error, empty if there is no trace.

    The same traceback from many hosts is written once, and only the first MAX_FILES_OF_HOSTS tracebacks are.
    """
    if not error.trace:
        return ""
    with _write_lock:
        path = _files_by_trace.get(error.trace)
        if (len(_files_by_trace) < MAX_FILES_OF_HOSTS) if path is None else not path.exists():
            path = write_crash(error)
        if path:
            _files_by_trace[error.trace] = path
    return f"please report it with {short_path(path)}" if path else "with -v the host's traceback is shown"


def report_crash(error: BaseException, argv: Sequence[str]) -> list[str]:
    """Write a crash file of a command; return lines to print: its path, or all its text if it cannot be written."""
    path = write_crash(error, argv=argv)
    text = [] if path else crash_text(error, argv=argv).splitlines()
    request = f"; please report it with {short_path(path)}" if path else ""
    return [*text, f"internal error: {summary(error)}{request}"]


def crash_text(error: BaseException, *, during: str = "", argv: Sequence[str] | None = None) -> str:
    """Return a crash file's text; see ``write_crash`` for the arguments."""
    facts = {
        "clusterddp": version("clusterddp"),
        "during": during,
        "command": shlex.join(["clusterddp", *without_secret_words(sys.argv[1:] if argv is None else argv)]),
        "time": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "python": f"{platform.python_version()} on {platform.platform()}",
        "libraries": ", ".join(f"{name} {version(name)}" for name in LIBRARIES),
    }
    parts = ["".join(f"{name:<11}{value}\n" for name, value in facts.items() if value)]
    stack = [] if error.__traceback__ else ["Stack:\n", *traceback.format_stack()]  # an exception that was never raised
    parts.append("".join([*stack, *traceback.format_exception(error)]))
    parts += [f"On {host}:\n{trace.rstrip()}\n" for host, trace in host_traces(error)]
    return without_secrets("\n".join(parts))


def summary(error: BaseException) -> str:
    """Describe an exception in half a line: its type, its first words, where it was raised."""
    line = next(iter("".join(traceback.format_exception_only(error)).splitlines()), "")
    frames = traceback.extract_tb(error.__traceback__)
    where = f" ({Path(frames[-1].filename).name}:{frames[-1].lineno})" if frames else ""
    printable = "".join(letter if letter.isprintable() else " " for letter in line[:MAX_SUMMARY])
    return without_secrets(printable.strip()) + where


def host_traces(error: BaseException) -> Iterator[tuple[str, str]]:
    """Yield the tracebacks that hosts sent with an error, its causes, or the errors it contains: (host, text)."""
    seen: set[int] = set()
    pending: list[BaseException | None] = [error]
    while pending:
        cause = pending.pop(0)
        if cause is None or id(cause) in seen:
            continue
        seen.add(id(cause))
        if trace := getattr(cause, "trace", ""):
            yield getattr(cause, "host", "a host"), trace
        pending += [*(cause.errors if isinstance(cause, HostsError) else ()), cause.__cause__, cause.__context__]


def without_secrets(text: str) -> str:
    """Return the text without the values of secrets that this process knows."""
    return hide_url_passwords(Redaction(known_secrets(), least=1).text(text))


def known_secrets() -> set[str]:
    """Return the secret values that this process knows: those it was given, and of its environment by their names."""
    named = {value for name, value in os.environ.items() if len(value) >= MIN_SECRET and is_secret(name, value)}
    return _secrets | named


def version(name: str) -> str:
    """Return the version of an installed library; ``?`` if it is not installed."""
    from importlib import metadata  # noqa: PLC0415 - only for reports

    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return "?"
