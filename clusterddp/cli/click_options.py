"""Options that several commands share, and click's types for durations, sizes and times."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from clusterddp.cli.completion import hosts
from clusterddp.errors import UsageError
from clusterddp.launch.options import option_values
from clusterddp.text.units import duration, ranks, shown, whole_number

if TYPE_CHECKING:
    from collections.abc import Callable


def _convert(
    read: Callable[[Any], Any],
    value: Any,
    kind: click.ParamType[Any],
    param: click.Parameter | None,
    ctx: click.Context | None,
) -> Any:
    """Convert a value by a reader of ``option_values``; its UsageError becomes click's for type ``kind``."""
    try:
        return read(value)
    except UsageError as error:
        kind.fail(str(error), param, ctx)


class Duration(click.ParamType[Any]):
    """``90``, ``90s``, ``5m``, ``2h``, ``3d`` → seconds; ``positive``: 0 is refused."""

    name = "duration"

    def __init__(self, *, positive: bool = False) -> None:
        self.positive = positive

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Return the seconds."""
        return float(_convert(option_values.limit if self.positive else duration, value, self, param, ctx))


class Moment(click.ParamType[Any]):
    """A duration ago, or an ISO date → ns since the epoch."""

    name = "time"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """Return the time in ns by this machine's clock."""
        from clusterddp.logs.selection import moment  # noqa: PLC0415 - only for --since and --until

        return int(_convert(lambda given: moment(given, time.time_ns()), value, self, param, ctx))


class Size(click.ParamType[Any]):
    """``500MB``, ``2G`` → bytes."""

    name = "size"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """Return the bytes."""
        return int(_convert(option_values.size, value, self, param, ctx))


class Number(click.ParamType[Any]):
    """A whole number of at least ``least``; with ``auto`` also that word, which becomes None."""

    name = "number"

    def __init__(self, least: int, *, auto: bool = False) -> None:
        self.least, self.auto = least, auto

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int | None:
        """Return the number."""
        answer: int | None = _convert(option_values.number(self.least, auto=self.auto), value, self, param, ctx)
        return answer


class AttemptType(click.ParamType[Any]):
    """``2`` → 2; ``last`` and ``all`` stay as they are."""

    name = "attempt"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int | str:
        """Return the number, or the word."""
        text = str(value).strip()
        if text in {"last", "all"}:
            return text
        number = whole_number(text)
        if not number:
            self.fail(f"{shown(text)} is no attempt; write a number from 1, last or all", param, ctx)
        return number


class Ranks(click.ParamType[Any]):
    """``0,2-5`` → (0, 2, 3, 4, 5); ``all`` → None."""

    name = "ranks"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[int, ...] | None:
        """Return the ranks."""
        answer: tuple[int, ...] | None = _convert(ranks, value, self, param, ctx)
        return answer


class Reader(click.ParamType[Any]):
    """Any value that a reader of ``launch/options/option_values.py`` accepts."""

    name = "text"

    def __init__(self, read: Callable[[Any], Any]) -> None:
        self.read = read

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the value."""
        return _convert(self.read, value, self, param, ctx)


class Checked(click.ParamType[Any]):
    """Text that ``check`` accepts; it raises a UsageError for any other."""

    name = "text"

    def __init__(self, check: Callable[[str], object]) -> None:
        self.check = check

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """Return the text itself."""
        _convert(self.check, value, self, param, ctx)
        return str(value)


DURATION, MOMENT, SIZE, RANKS = Duration(), Moment(), Size(), Ranks()


def setting(*names: str, **attributes: Any) -> Callable[[Any], Any]:
    """Declare an option that ``CLUSTERDDP_<NAME>`` and ``[tool.clusterddp]`` set too."""
    long = next(name for name in names if name.startswith("--"))
    variable = "CLUSTERDDP_" + long.split("/")[0].removeprefix("--").replace("-", "_").upper()
    return click.option(*names, envvar=variable, show_envvar=False, **attributes)


def watching_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options of ``run`` and ``logs`` for showing a run's lines."""
    fold = "Show equal lines of several ranks as one (with more than 8 on a terminal)."
    agents = "All of torchrun's own lines, those of its end too."
    silence = "While following: say when no rank has printed for so long (5m; 0: never)."
    with_silence = setting("--silence", type=DURATION, default=300.0, metavar="D", help=silence)(function)
    with_fold = setting("--fold/--no-fold", default=None, help=fold)(with_silence)
    whole = "On a terminal: whole tracebacks also of ranks that lost a peer."
    with_whole = setting("--show-all", is_flag=True, help=whole)(with_fold)
    decorated: Callable[..., Any] = setting("--show-agents", is_flag=True, help=agents)(with_whole)
    return decorated


def inventory_option(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add ``-i`` alone, for a command that names its hosts by itself."""
    decorated: Callable[..., Any] = setting(
        "-i",
        "--inventory",
        type=click.Path(path_type=Path, readable=False),
        metavar="FILE",
        help="The inventory, for this command only.",
    )(function)
    return decorated


def cluster_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add ``-i`` and ``--limit``, which choose the hosts for this command only."""
    limit = setting(
        "--limit", metavar="PATTERN", shell_complete=hosts, help="Only hosts that match this Ansible pattern."
    )
    decorated: Callable[..., Any] = inventory_option(limit(function))
    return decorated
