"""Crash files: what is written down about a bug of ours, for whoever fixes it.

One file per crash in the project's ``.clusterddp/crashes/``, 0600, the last KEPT of them: versions, the command, our
traceback and those that hosts have sent. Values of secrets are left out.
"""

from __future__ import annotations

import contextlib
import os
import platform
import re
import shlex
import sys
import threading
import traceback
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING

from clusterddp.errors import HostsError
from clusterddp.project.project import find, typed
from clusterddp.remote.shared.text.redaction import HIDDEN, Redaction
from clusterddp.text.secret_names import is_secret

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from clusterddp.errors import HostError
    from clusterddp.project.project import Project

FOLDER = "crashes"
KEPT = 20  # files
MOST_SHOWN = 300  # letters of an exception on a line
LIBRARIES = ("click", "fabric", "paramiko", "cryptography", "pyyaml", "rich", "jinja2")
LEAST = 8  # letters of a value in our environment that is taken for a secret by its variable's name
_PASSWORD = re.compile(r"(://[^/@\s:]*:)[^/@\s]+@")  # of an address
_hidden: set[str] = set()
_writing = threading.Lock()
_written: dict[str, Path] = {}  # a host's traceback → its crash file


def hide(values: Iterable[str]) -> None:
    """Keep these secret values out of every crash file and log of this process."""
    _hidden.update(value for value in values if value)


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
        for old in sorted(path.parent.glob("*.txt"))[:-KEPT]:
            old.unlink(missing_ok=True)
        return path
    return None


def crash_of_host(error: HostError) -> str:
    """Write a crash file of a bug that a host reported; return the remedy for the error, empty if there is no trace.

    The same traceback from many hosts is written once.
    """
    if not error.trace:
        return ""
    with _writing:
        path = _written.get(error.trace)
        if path is None or not path.exists():
            path = write_crash(error)
        if path:
            _written[error.trace] = path
    return f"please report it with {typed(path)}" if path else "with -v the host's traceback is shown"


def reported(error: BaseException, argv: Sequence[str]) -> list[str]:
    """Write a crash file of a command; return the line that names it, after the whole text if there can be no file."""
    path = write_crash(error, argv=argv)
    text = [] if path else crash_text(error, argv=argv).splitlines()
    return [*text, f"internal error: {summary(error)}" + (f"; please report it with {typed(path)}" if path else "")]


def crash_text(error: BaseException, *, during: str = "", argv: Sequence[str] | None = None) -> str:
    """Return a crash file's text; see ``write_crash`` for the arguments."""
    facts = {
        "clusterddp": version("clusterddp"),
        "during": during,
        "command": shlex.join(["clusterddp", *_shown(sys.argv[1:] if argv is None else argv)]),
        "time": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "python": f"{platform.python_version()} on {platform.platform()}",
        "libraries": ", ".join(f"{name} {version(name)}" for name in LIBRARIES),
    }
    parts = ["".join(f"{name:<11}{value}\n" for name, value in facts.items() if value)]
    stack = [] if error.__traceback__ else ["Stack:\n", *traceback.format_stack()]  # reported, not raised here
    parts.append("".join([*stack, *traceback.format_exception(error)]))
    parts += [f"On {host}:\n{trace.rstrip()}\n" for host, trace in host_traces(error)]
    return without_secrets("\n".join(parts))


def summary(error: BaseException) -> str:
    """Describe an exception in half a line: its type, its first words, where it was raised."""
    line = next(iter("".join(traceback.format_exception_only(error)).splitlines()), "")
    frames = traceback.extract_tb(error.__traceback__)
    where = f" ({Path(frames[-1].filename).name}:{frames[-1].lineno})" if frames else ""
    printable = "".join(letter if letter.isprintable() else " " for letter in line[:MOST_SHOWN])
    return without_secrets(printable.strip()) + where


def host_traces(error: BaseException) -> Iterator[tuple[str, str]]:
    """Yield the tracebacks that hosts sent with an error, its causes, or the errors it contains: (host, text)."""
    seen: set[int] = set()
    todo: list[BaseException | None] = [error]
    while todo:
        one = todo.pop(0)
        if one is None or id(one) in seen:
            continue
        seen.add(id(one))
        if trace := getattr(one, "trace", ""):
            yield getattr(one, "host", "a host"), trace
        todo += [*(one.errors if isinstance(one, HostsError) else ()), one.__cause__, one.__context__]


def without_secrets(text: str) -> str:
    """Return the text without the values of secrets that this process knows."""
    named = {value for name, value in os.environ.items() if len(value) >= LEAST and is_secret(name, value)}
    return _PASSWORD.sub(rf"\1{HIDDEN}@", Redaction(_hidden | named, least=1).text(text))


def _shown(words: Sequence[str]) -> Iterator[str]:
    """Yield a command's words without values that are secret by their name, and without any of ``--env``."""
    before = ""
    for word in words:
        option = "--env=" if word.startswith("--env=") else ""
        name, equals, value = word.removeprefix(option).partition("=")
        if equals and (option or before == "--env" or _is_secret(name, value)):
            yield f"{option}{name}={HIDDEN}"
        elif before.startswith("-") and before != "--secret" and not word.startswith("-") and _is_secret(before, word):
            yield HIDDEN
        else:
            yield word
        before = word


def _is_secret(name: str, value: str) -> bool:
    return is_secret(name.strip("-").replace("-", "_"), value)


def version(name: str) -> str:
    """Return the version of an installed library; ``?`` if it is not installed."""
    from importlib import metadata  # noqa: PLC0415 - only for reports

    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return "?"
