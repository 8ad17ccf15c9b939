"""What the words of options may be, ``run``'s above all: checked before any host is touched.

Not here: numbers, durations and ranks, which other commands have too (options.py).
"""

from __future__ import annotations

import os
import re
from pathlib import Path

from clusterddp.errors import UsageError

_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


def gpus(text: str) -> None:
    """``all``, ``free``, ``free:N``, or indices and UUIDs."""
    from clusterddp.facts.gpu_assignment import GpuPolicy  # noqa: PLC0415 - start-up

    try:
        GpuPolicy.parse(text)
    except UsageError as error:
        raise UsageError(error.message.partition(" ")[2], remedy=error.remedy) from None  # without its "--gpus"


def secret(name: str) -> None:
    """A variable of ours that is set."""
    if "=" in name:
        raise UsageError("takes a name alone", remedy="export the value, that it stands in no process list")
    _check_name(name)
    if name not in os.environ:
        raise UsageError(f"{name} is not set in this environment", remedy=f"export {name} first")


def launcher(name: str) -> None:
    """A launcher's name; whether it is there yet is told when it is asked for."""
    from clusterddp.inventory.variable_names import LAUNCHERS  # noqa: PLC0415 - start-up

    if name not in LAUNCHERS:
        raise UsageError(
            f"{name!r} is not one of {', '.join(LAUNCHERS)}", remedy=f"leave it out: {LAUNCHERS[0]} serves"
        )


def run_name(text: str) -> None:
    """A run's name: something to print and to type."""
    if not text.strip() or not text.isprintable() or text.startswith("-"):
        raise UsageError(f"{text!r} is no name", remedy="use letters and digits, such as lr3e-4")


def workdir(name: str) -> None:
    """The name of a folder beside the project's."""
    from clusterddp.launch.options import RunOptions  # noqa: PLC0415 - start-up

    try:
        RunOptions(script="", workdir=name)
    except UsageError as error:
        raise UsageError(error.message.removeprefix("--workdir "), remedy=error.remedy) from None


def torchrun_arg(word: str) -> None:
    """An option of torchrun that the plan does not set itself."""
    from clusterddp.launch.plan import LaunchOptions  # noqa: PLC0415 - start-up

    try:
        LaunchOptions(script="", env={}, torchrun_args=(word,))
    except UsageError as error:
        raise UsageError(error.message.removeprefix("--torchrun-arg "), remedy="leave it out") from None


def writable(text: str) -> None:
    """A file that can be written when the run has ended, hours from now."""
    path = Path(text)
    if path.is_dir():
        raise UsageError(f"{text} is a folder", remedy="name a file in it")
    if not path.parent.is_dir():
        raise UsageError(f"{text}: there is no folder {path.parent}", remedy="make it first")
    if not os.access(path if path.exists() else path.parent, os.W_OK):
        raise UsageError(f"{text} cannot be written", remedy="name another file")


def names(text: str | None) -> tuple[str, ...]:
    """``a,b`` taken apart; None is none."""
    return tuple(word.strip() for word in (text or "").split(",") if word.strip())


def checks(text: str | None) -> tuple[str, ...]:
    """Names of checks or categories, taken apart.

    Raises:
        UsageError: one is no check.
    """
    found = names(text)
    if found:
        from clusterddp.checks.engine import select  # noqa: PLC0415 - start-up

        select(skip=found)
    return found


def environment(given: tuple[str, ...], file: Path | None) -> dict[str, str]:
    """``--env-file`` and then ``--env``; K alone takes the value from our own environment.

    Raises:
        UsageError: a word or a line is no K=V, or sets what torchrun sets for each worker.
    """
    values = _file(file) if file else {}
    for word in given:
        name, equals, value = word.partition("=")
        try:
            _check_name(name)
        except UsageError as error:
            raise UsageError(f"--env {word}: {error}") from None
        if not equals and name not in os.environ:
            raise UsageError(f"--env {name}: it is not set in this environment", remedy=f"write --env {name}=VALUE")
        values[name] = value if equals else os.environ[name]
    return values


def _file(file: Path) -> dict[str, str]:
    try:
        text = file.read_text(encoding="utf-8")
    except OSError as error:
        raise UsageError(f"--env-file {file}: {error.strerror}", remedy="give a file of K=V lines") from None
    except UnicodeDecodeError as error:
        place = error.object.count(b"\n", 0, error.start) + 1
        raise UsageError(f"{file}:{place}: not UTF-8", remedy="save it as UTF-8") from None
    values = {}
    for number, line in enumerate(text.split("\n"), 1):
        word = line.rstrip("\r").removeprefix("export ")
        if not word.strip() or word.lstrip().startswith("#"):
            continue
        name, equals, value = word.partition("=")
        try:
            _check_name(name.strip())
        except UsageError as error:
            raise UsageError(f"{file}:{number}: {error}") from None
        if not equals or "\0" in value:
            raise UsageError(f"{file}:{number}: {name.strip()} has no value", remedy="write it as K=V")
        values[name.strip()] = value
    return values


def _check_name(name: str) -> None:
    from clusterddp.remote.shared.node_env import STALE  # noqa: PLC0415 - start-up

    if not _VARIABLE.fullmatch(name):
        raise UsageError(f"{name[:60]!r} is no name of a variable", remedy="use letters, digits and _")
    if name in STALE:
        raise UsageError(f"{name} is set by torchrun for each worker", remedy="leave it out")
