"""Click's options for the fields of ``RunOptions``: flags, types, defaults and help follow from the declarations."""

from __future__ import annotations

from dataclasses import fields
from typing import TYPE_CHECKING, Any

import click

from clusterddp.cli import completion
from clusterddp.cli.click_options import Reader, setting
from clusterddp.launch.options import DECLARED, RunOptions, option_values

if TYPE_CHECKING:
    from collections.abc import Callable


def run_option(name: str) -> Callable[[Any], Any]:
    """Return the click option of one field of ``RunOptions``."""
    declared = DECLARED[name]
    attributes = {"help": declared.help, "metavar": declared.metavar, **_click_type(declared.read), **_default(name)}
    if declared.complete:
        attributes["shell_complete"] = getattr(completion, declared.complete)
    names = [declared.short] if declared.short else []
    make = setting if declared.setting else click.option
    return make(*names, f"--{name.replace('_', '-')}", **attributes)


def run_options(first: str, before: str) -> Callable[[Any], Any]:
    """Add the options of the fields from ``first`` up to the one before ``before``, in their order."""
    names = list(DECLARED)
    selected = names[names.index(first) : names.index(before)]

    def decorate(function: Any) -> Any:
        for name in reversed(selected):  # click shows the decorator nearest to the function last
            function = run_option(name)(function)
        return function

    return decorate


def _click_type(read: Callable[[Any], object]) -> dict[str, Any]:
    """Return click's attributes (type, flag, multiple) for the values that a reader accepts."""
    if read is option_values.flag:
        return {"is_flag": True}
    if read is option_values.environment:  # K=V and K alone are read with --env-file
        return {"multiple": True}
    if isinstance(read, option_values.Choice):
        return {"type": click.Choice(read.choices)}
    if isinstance(read, option_values.Each):
        return {"type": Reader(option_values.checked(read.check)), "multiple": True}
    return {"type": Reader(read)}


def _default(name: str) -> dict[str, Any]:
    """Return click's attribute for a field's default; none where click's own is the same (None, or a flag's False)."""
    default = next(field.default for field in fields(RunOptions) if field.name == name)
    return {"default": default} if isinstance(default, (str, int, float)) and default is not False else {}
