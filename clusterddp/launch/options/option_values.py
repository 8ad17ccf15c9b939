"""Validate the values of a run's options, given as text on the command line or as values from Python."""

from __future__ import annotations

import difflib
import os
import re
import shlex
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, overload

from clusterddp.errors import UsageError
from clusterddp.remote.shared.run.node_env import STALE_VARIABLES
from clusterddp.remote.shared.run.run_settings import MIN_STALL
from clusterddp.remote.shared.workdir.workdir_names import FRESH, is_name
from clusterddp.text.units import duration, parse_size, shown, split_names, whole_number

if TYPE_CHECKING:
    from collections.abc import Callable

Read = TypeVar("Read")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_NODES = re.compile(r"(\d{1,6})(?::(\d{1,6}))?", re.ASCII)


# torchrun's options that the plan sets itself; giving one by --torchrun-arg would contradict it.
SET_BY_PLAN = {
    "--nnodes", "--nproc-per-node", "--rdzv-backend", "--rdzv-endpoint", "--rdzv-id", "--rdzv-conf", "--standalone",
    "--node-rank", "--master-addr", "--master-port", "--local-addr", "--log-dir", "-r", "--redirects", "-t", "--tee",
    "--max-restarts", "--no-python", "--module", "-m", "--run-path", "--logs-specs",
}  # fmt: skip
MAX_ARRAY_RUNS = 1000
_ARRAY = re.compile(r"([0-9]{1,6})-([0-9]{1,6})(?:%[1-9][0-9]{0,5})?")


def refuse_unknown(given: Iterable[str], names: Iterable[str], owner: str) -> None:
    """Refuse a keyword that is not among ``names``; raises UsageError, whose message ends with ``owner``."""
    names = list(names)
    for name in [name for name in given if name not in names]:
        similar = difflib.get_close_matches(name, names, 1)
        remedy = f"did you mean {similar[0]}?" if similar else f"known are {', '.join(names)}"
        raise UsageError(f"{name} is no option of {owner}", remedy=remedy)


def read(name: str, reader: Callable[[Any], Read], value: Any) -> Read:
    """Return a value as checked by its reader; raises UsageError if the value is invalid."""
    try:
        return reader(value)
    except UsageError as error:
        raise UsageError(f"{name}: {error.message}", remedy=error.remedy) from None


def read_all(given: Mapping[str, Any], readers: Mapping[str, Callable[[Any], Any]], owner: str) -> dict[str, Any]:
    """Return keywords with their checked values; keywords that were not given are left out. Raises UsageError."""
    refuse_unknown(given, readers, owner)
    return {name: read(name, readers[name], value) for name, value in given.items()}


def optional(reader: Callable[[Any], Read]) -> Callable[[Any], Read | None]:
    """Return a reader that also accepts None."""
    return lambda value: None if value is None else reader(value)


def callback(value: Any) -> Any:
    """Accept a function or another callable."""
    if not callable(value):
        raise UsageError(f"{shown(value)} cannot be called", remedy="give a function that takes a text")
    return value


def folder(value: Any) -> Path:
    """Accept an existing folder."""
    if not isinstance(value, str | os.PathLike):
        raise UsageError(f"{shown(value)} is no path", remedy="give a folder's")
    path = Path(value)
    if not path.is_dir():
        raise UsageError(f"{path}: there is no such folder", remedy="give the project's")
    return path


def text(value: Any) -> str:
    """Accept a text."""
    if not isinstance(value, str):
        raise UsageError(f"{shown(value)} is no text", remedy=f"write {str(value)[:40]!r}")
    return value


def flag(value: Any) -> bool:
    """Accept True or False."""
    if not isinstance(value, bool):
        raise UsageError(f"{shown(value)} is neither True nor False", remedy="write one of them")
    return value


class Choice:
    """A reader that accepts one of ``choices``."""

    def __init__(self, *choices: str) -> None:
        self.choices = choices

    def __call__(self, value: Any) -> str:
        """Return the word."""
        if value not in self.choices:
            raise UsageError(f"{shown(value)} is not one of {', '.join(self.choices)}", remedy="choose one of them")
        return str(value)


spread = Choice("auto", "on", "off")
take = Choice("project", "host")


def arguments(value: Any) -> tuple[str, ...]:
    """Accept several texts; a single text is refused, because it would be split into letters."""
    if isinstance(value, str) or not isinstance(value, Iterable):
        raise UsageError(f"{shown(value)} is no list of texts", remedy=f"write {_as_list(value)}")
    return tuple(text(item) for item in value)


def _as_list(value: Any) -> list[str]:
    """Split a text as a shell would, to suggest the list that was probably meant."""
    try:
        return shlex.split(str(value))
    except ValueError:  # an unclosed quote
        return [str(value)]


class Each:
    """A reader of one text or several texts that ``check`` accepts."""

    def __init__(self, check: Callable[[str], object]) -> None:
        self.check = check

    def __call__(self, value: Any) -> tuple[str, ...]:
        """Return the texts."""
        texts = (value,) if isinstance(value, str) else arguments(value)
        for item in texts:
            self.check(item)
        return texts


def names(value: Any) -> tuple[str, ...]:
    """Split ``a,b``, or accept several texts."""
    return split_names(value if isinstance(value, str) else arguments(value))


def checked(check: Callable[[str], object]) -> Callable[[Any], str]:
    """Return a reader of a text that ``check`` accepts."""

    def read(value: Any) -> str:
        check(text(value))
        return str(value)

    return read


def limit(value: Any) -> float:
    """Accept a duration other than 0."""
    return duration(value, positive=True)


def stall(value: Any) -> float:
    """Accept a duration that is long enough to prove a hang, or 0."""
    seconds = duration(value)
    if 0 < seconds < MIN_STALL:
        raise UsageError(
            f"{shown(value)} is too short to tell a hang from a slow step",
            remedy=f"write {MIN_STALL:g}s or more, or 0 for no stall guard",
        )
    return seconds


def size(value: Any) -> int:
    """``500MB``, ``2G``, or bytes as a number → bytes."""
    try:
        return parse_size(str(value) if isinstance(value, int) and not isinstance(value, bool) else text(value))
    except UsageError:
        raise UsageError(f"{shown(value)} is no size", remedy="write 500MB or 2G") from None


@overload
def number(least: int) -> Callable[[Any], int]: ...
@overload
def number(least: int, *, auto: bool) -> Callable[[Any], int | None]: ...
def number(least: int, *, auto: bool = False) -> Callable[[Any], int | None]:
    """Return a reader of a whole number from ``least`` up; with ``auto``, also of that word, which becomes None."""

    def read(value: Any) -> int | None:
        written = str(value).strip() if isinstance(value, (str, int)) and not isinstance(value, bool) else ""
        if auto and written == "auto":
            return None
        found = whole_number(written)
        if found is None or found < least:
            what = "neither auto nor a" if auto else "no"
            raise UsageError(f"{shown(written or value)} is {what} number of at least {least}")
        return found

    return read


def nodes(value: Any) -> tuple[int, int]:
    """``4`` → (4, 4); ``2:4`` → (2, 4): at least two nodes, at most four."""
    size = f"{value[0]}:{value[1]}" if isinstance(value, tuple) and len(value) == 2 else str(value).strip()
    match = _NODES.fullmatch(size)
    if not match or int(match[1]) < 1 or isinstance(value, (bool, float)):
        raise UsageError(f"{size!r} is no number of nodes", remedy="write 4, or 2:4 for two to four")
    least, most = int(match[1]), int(match[2] or match[1])
    if least > most:
        raise UsageError(f"{size!r}: the least is more than the most", remedy=f"write {most}:{least}")
    return least, most


def checks(value: Any) -> tuple[str, ...]:
    """Accept names of checks or categories; a wrong one is refused before any host is reached."""
    selected = names(value)
    if selected:
        from clusterddp.checks.engine import select  # noqa: PLC0415 - the whole catalogue of checks, only to check their names

        select(skip=selected)
    return selected


def gpus(value: str) -> None:
    """Accept ``all``, ``free``, ``free:N``, or indices and UUIDs."""
    from clusterddp.facts.gpu_assignment import GpuPolicy  # noqa: PLC0415 - only for --gpus

    try:
        GpuPolicy.parse(value)
    except UsageError as error:
        raise UsageError(error.message.partition(" ")[2], remedy=error.remedy) from None  # without its "--gpus"


def secret(name: str) -> None:
    """Accept a variable that is set in this process's environment."""
    if "=" in name:
        raise UsageError("takes a name alone", remedy="export the value, that it stands in no process list")
    variable(name)
    if name not in os.environ:
        raise UsageError(f"{name} is not set in this environment", remedy=f"export {name} first")


def variable(name: str) -> None:
    """Accept a variable's name that torchrun does not set itself."""
    if not _VARIABLE.fullmatch(name):
        raise UsageError(f"{name[:60]!r} is no name of a variable", remedy="use letters, digits and _")
    if name in STALE_VARIABLES:
        raise UsageError(f"{name} is set by torchrun for each worker", remedy="leave it out")


def environment(value: Any) -> dict[str, str]:
    """Accept variables by name."""
    if not isinstance(value, Mapping):
        raise UsageError(f"{shown(value)} is no mapping", remedy="write {'NAME': 'VALUE'}")
    for name, content in value.items():
        variable(text(name))
        if not isinstance(content, str) or "\0" in content:
            raise UsageError(f"{name}: {shown(content)} is no text", remedy=f"write {str(content)[:40]!r}")
    return dict(value)


def launcher(name: str) -> None:
    """Accept the name of a launcher that exists."""
    from clusterddp.inventory.launchers import DEFAULT_LAUNCHER, LAUNCHERS  # noqa: PLC0415 - the inventory's package reads YAML

    if name not in LAUNCHERS:
        raise UsageError(
            f"{name!r} is not one of {', '.join(LAUNCHERS)}", remedy=f"leave it out: {DEFAULT_LAUNCHER} serves"
        )


def run_name(name: str) -> None:
    """Accept a run's name if it is printable, easy to type, and not ``.`` or ``..``."""
    if not name.strip() or not name.isprintable() or name.startswith("-") or name in {".", ".."}:
        raise UsageError(f"{name!r} is no name", remedy="use letters and digits, such as lr3e-4")


def array(indices: str) -> None:
    """Accept the indices of a run's array, as Slurm writes them: ``0-7``, or ``0-7%2`` for two at once."""
    match = _ARRAY.fullmatch(indices)
    if not match or not int(match[1]) <= int(match[2]) < int(match[1]) + MAX_ARRAY_RUNS:
        raise UsageError(f"{shown(indices)} are no indices", remedy=f"use 0-7, or 0-7%2; at most {MAX_ARRAY_RUNS}")


def workdir(name: str) -> None:
    """Accept the name of a folder beside the project's, or ``fresh``."""
    if not is_name(name):
        raise UsageError(
            f"{shown(name)} cannot be a folder's name",
            remedy=f"use at most 64 letters, digits, '.', '_' and '-', or {FRESH}",
        )


def torchrun_arg(argument: str) -> None:
    """Accept an option of torchrun that the plan does not set itself."""
    option = argument.split("=", maxsplit=1)[0].replace("_", "-")
    if not option.startswith("--"):
        option = option[: len("-r")]  # its value may follow at once
    # torchrun takes beginnings of its options for them
    begun = option if len(option) > len("-r") else f"{option} "
    meant = next((name for name in sorted(SET_BY_PLAN) if name == option or name.startswith(begun)), None)
    if meant:
        raise UsageError(f"{argument}: {meant} is set by clusterddp itself", remedy="leave it out")
