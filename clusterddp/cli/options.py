"""Options that several commands share, and how durations, sizes and times are written."""

from __future__ import annotations

import re
import time
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from collections.abc import Callable

_UNITS = {"": 1.0, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_SIZES = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12}


class Duration(click.ParamType[Any]):
    """``90``, ``90s``, ``5m``, ``2h``, ``3d`` → seconds."""

    name = "duration"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """The seconds."""
        if isinstance(value, int | float):
            return float(value)
        found = re.fullmatch(r"(\d+(?:\.\d+)?)([smhd]?)", str(value).strip())
        if not found:
            self.fail(f"{value!r} is no duration; write 90, 90s, 5m, 2h or 3d", param, ctx)
        return float(found[1]) * _UNITS[found[2]]


class Moment(click.ParamType[Any]):
    """A duration ago, or an ISO date → ns since the epoch."""

    name = "time"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """The time in ns by the operator's clock."""
        if isinstance(value, int):
            return value
        text = str(value).strip()
        if re.fullmatch(r"\d+(?:\.\d+)?[smhd]?", text):
            return time.time_ns() - int(Duration().convert(text, param, ctx) * 1e9)
        try:
            return int(datetime.fromisoformat(text).timestamp() * 1e9)
        except ValueError:
            self.fail(f"{value!r} is no time; write 10m (ago) or 2026-01-31T12:00", param, ctx)


class Size(click.ParamType[Any]):
    """``500MB``, ``2G`` → bytes."""

    name = "size"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """The bytes."""
        if isinstance(value, int):
            return value
        found = re.fullmatch(r"(\d+(?:\.\d+)?)([kmgt]?)b?", str(value).strip().lower())
        if not found:
            self.fail(f"{value!r} is no size; write 500MB or 2G", param, ctx)
        return int(float(found[1]) * _SIZES[found[2]])


DURATION, MOMENT, SIZE = Duration(), Moment(), Size()


def setting(*names: str, **attributes: Any) -> Callable[[Any], Any]:
    """An option that ``CLUSTERDDP_<NAME>`` and ``[tool.clusterddp]`` set too."""
    long = next(name for name in names if name.startswith("--"))
    variable = "CLUSTERDDP_" + long.split("/")[0].removeprefix("--").replace("-", "_").upper()
    return click.option(*names, envvar=variable, show_envvar=False, **attributes)


def cluster_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """``-i`` and ``--limit``: which hosts, for this command only."""
    inventory = setting(
        "-i",
        "--inventory",
        type=click.Path(path_type=Path),
        metavar="FILE",
        help="The inventory, for this command only.",
    )
    limit = setting("--limit", metavar="PATTERN", help="Only hosts that match this Ansible pattern.")
    decorated: Callable[..., Any] = inventory(limit(function))
    return decorated


def ranks(text: str) -> tuple[int, ...]:
    """``0,2-5`` → (0, 2, 3, 4, 5).

    Raises:
        click.BadParameter: it is no list of ranks.
    """
    found: list[int] = []
    for part in text.split(","):
        match = re.fullmatch(r"(\d+)(?:-(\d+))?", part.strip())
        if not match or (match[2] and int(match[2]) < int(match[1])):
            raise click.BadParameter(f"{text!r} is no list of ranks; write 0,2-5")
        found.extend(range(int(match[1]), int(match[2] or match[1]) + 1))
    return tuple(found)
