"""Check and read what options name (files, environments, URLs), before any host is contacted."""

from __future__ import annotations

import os
from pathlib import Path

from clusterddp.errors import UsageError
from clusterddp.launch.options.option_values import variable


def check_writable(text: str) -> None:
    """Refuse a file that could not be written when the run has ended, hours from now; raises UsageError."""
    path = Path(text)
    if path.is_dir():
        raise UsageError(f"{text} is a folder", remedy="name a file in it")
    if not path.parent.is_dir():
        raise UsageError(f"{text}: there is no folder {path.parent}", remedy="make it first")
    if not os.access(path if path.exists() else path.parent, os.W_OK):
        raise UsageError(f"{text} cannot be written", remedy="name another file")


def is_url(target: str) -> bool:
    """Whether the target of ``--notify`` is a URL; else it is a command."""
    return target.startswith(("http://", "https://"))


def read_environment(settings: tuple[str, ...], file: Path | None) -> dict[str, str]:
    """Return the variables of ``--env-file`` (``file``) and, above them, of ``--env`` (``settings``: ``K=V`` or ``K``).

    ``K`` alone takes its value from this process's environment.
    """
    values = _read_env_file(file) if file else {}
    for word in settings:
        name, equals, value = word.partition("=")
        try:
            variable(name)
        except UsageError as error:
            raise UsageError(f"--env {word}: {error}") from None
        if not equals and name not in os.environ:
            raise UsageError(f"--env {name}: it is not set in this environment", remedy=f"write --env {name}=VALUE")
        values[name] = value if equals else os.environ[name]
    return values


def _read_env_file(file: Path) -> dict[str, str]:
    """Return the variables in a file of ``K=V`` lines; raises UsageError that names the line."""
    try:
        text = file.read_text(encoding="utf-8-sig")  # Notepad begins a file with a mark
    except OSError as error:
        raise UsageError(f"--env-file {file}: {error.strerror}", remedy="give a file of K=V lines") from None
    except UnicodeDecodeError as error:
        number = error.object.count(b"\n", 0, error.start) + 1
        raise UsageError(f"{file}:{number}: not UTF-8", remedy="save it as UTF-8") from None
    values = {}
    for number, line in enumerate(text.split("\n"), 1):
        word = line.rstrip("\r").removeprefix("export ")
        if not word.strip() or word.lstrip().startswith("#"):
            continue
        name, equals, value = word.partition("=")
        try:
            variable(name.strip())
        except UsageError as error:
            raise UsageError(f"{file}:{number}: {error}") from None
        if not equals or "\0" in value:
            raise UsageError(f"{file}:{number}: {name.strip()} has no value", remedy="write it as K=V")
        values[name.strip()] = value
    return values
