"""Reads a host's merged variables by name, with a function for each type; errors have place, value and remedy.

A variable that is unset or null is None. Jinja and Ansible's tags are errors here, because only variables that we use
are read.
"""

from __future__ import annotations

import re
import shlex
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any, NoReturn

from clusterddp.errors import InventoryError
from clusterddp.inventory.yaml_values import Opaque
from clusterddp.text.units import whole_number

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from clusterddp.inventory.yaml_values import Setting

_JINJA = re.compile(r"\{\{|\{%")  # not {#, which is bash's ${#name}
VARIABLE_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


class ForeignInventory(InventoryError):
    """An inventory that Ansible can read and we cannot; ``up`` has it converted."""


def refuse_value(setting: Setting, expected: str, remedy: str) -> NoReturn:
    """Raise the error for a value that is not of the expected kind."""
    shown = repr(setting.value)
    shown = shown if len(shown) <= 60 else shown[:57] + "…"
    raise InventoryError(f"must be {expected}, got {shown}", where=setting.where, remedy=remedy)


def check_usable(setting: Setting) -> Setting:
    """Return the setting if its value holds nothing that only Ansible can interpret; else raise InventoryError."""
    foreign = _only_for_ansible(setting.value)
    if foreign == "!vault":
        remedy = "`clusterddp up` with this inventory has ansible-vault decrypt it, and remembers it"
        raise ForeignInventory("is encrypted with ansible-vault (!vault)", where=setting.where, remedy=remedy)
    if foreign:
        raise InventoryError(
            f"holds {foreign}, which only Ansible can read, in a variable that clusterddp uses",
            where=setting.where,
            remedy="write the plain value",
        )
    return setting


def _only_for_ansible(value: Any) -> str:
    """What in a value only Ansible can interpret, at any depth; empty if nothing."""
    if isinstance(value, Opaque):
        return f"!{value.kind}"
    if isinstance(value, str):
        return "a Jinja template" if _JINJA.search(value) else ""
    if isinstance(value, dict):
        return next(filter(None, map(_only_for_ansible, value.values())), "")
    if isinstance(value, list):
        return next(filter(None, map(_only_for_ansible, value)), "")
    return ""


class VariableReader:
    """Reads one host's variables, of which the inventory's files are already merged by Ansible's precedence."""

    def __init__(self, merged: Mapping[str, Setting]) -> None:
        self._merged = merged

    def get(self, *names: str) -> Setting | None:
        """The last of these names that is set, or None; the names are aliases of one variable."""
        found = None
        for name in names:
            setting = self._merged.get(name)
            found = setting if setting is not None and setting.value is not None else found
        return None if found is None else check_usable(found)

    def needed(self, *names: str) -> Setting:
        """The last of these names that is set; one must be."""
        setting = self.get(*names)
        if setting is None:
            raise KeyError(*names)
        return setting


def text(setting: Setting) -> str:
    """Text that is not empty; a number is taken as it is written."""
    value = setting.value
    if isinstance(value, (int, float)) and setting.text is not None:
        value = setting.text
    if not isinstance(value, str) or not value.strip() or not value.replace("\n", "").isprintable():
        refuse_value(setting, "text", "give it, quoted, or remove the key")
    return value.strip()


def line(setting: Setting) -> str:
    """Text without a line break."""
    found = text(setting)
    if "\n" in found:
        refuse_value(setting, "one line", "remove the line break")
    return found


def number(setting: Setting, *, least: int, most: int, expected: str) -> int:
    """A whole number within bounds."""
    found = whole_number(setting.value)
    if found is None or not least <= found <= most:
        refuse_value(setting, expected, "write it as a plain number")
    return found


def choice(*choices: str) -> Callable[[Setting], Any]:
    """Return a reader of one of a few values."""

    def read(setting: Setting) -> str:
        if setting.value not in choices:
            close = get_close_matches(str(setting.value), choices, n=1)
            remedy = f"did you mean {close[0]}?" if close else "write one of them"
            refuse_value(setting, " or ".join([", ".join(choices[:-1]), choices[-1]]), remedy)
        return str(setting.value)

    return read


def arguments(setting: Setting) -> tuple[str, ...]:
    """Command line arguments, split as a shell would split them."""
    try:
        return tuple(shlex.split(text(setting)))
    except ValueError as error:
        refuse_value(setting, f"arguments as on a command line ({error})", "balance the quotes")


def shell_lines(setting: Setting) -> tuple[str, ...]:
    """Shell lines: a text of one or more lines, or a list of such texts."""
    parts = setting.value if isinstance(setting.value, list) else [setting.value]
    if not all(isinstance(part, str) and "\0" not in part for part in parts):
        refuse_value(setting, "text, or a list of texts", "quote each line")
    return tuple(one for part in parts for one in part.splitlines() if one.strip())
