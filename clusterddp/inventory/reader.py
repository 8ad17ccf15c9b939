"""Reads a host's merged variables by name, with a method for each type; errors have place, value and remedy.

A variable that is unset or null is None. Jinja and Ansible's tags are errors here, because only variables that we use
are read.
"""

from __future__ import annotations

import re
import shlex
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any, NoReturn

from clusterddp.errors import InventoryError
from clusterddp.inventory.yamlfile import Opaque

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from clusterddp.inventory.yamlfile import Setting

_JINJA = re.compile(r"\{\{|\{%")  # not {#, which is bash's ${#name}
VARIABLE_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


class ForeignInventory(InventoryError):
    """An inventory that Ansible can read and we cannot; ``up`` has it converted."""


def refuse_value(setting: Setting, expected: str, remedy: str) -> NoReturn:
    """Raise the error for a value that is not of the expected kind."""
    shown = repr(setting.value)
    shown = shown if len(shown) <= 60 else shown[:57] + "…"
    raise InventoryError(f"must be {expected}, got {shown}", where=setting.where, remedy=remedy)


def usable(setting: Setting) -> Setting:
    """The setting itself, if we can interpret its value.

    Raises ``ForeignInventory`` if it is encrypted, ``InventoryError`` if it contains Jinja or a tag that only Ansible
    can evaluate.
    """
    foreign = _foreign(setting.value)
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


def _foreign(value: Any) -> str:
    if isinstance(value, Opaque):
        return f"!{value.kind}"
    if isinstance(value, str):
        return "a Jinja template" if _JINJA.search(value) else ""
    if isinstance(value, dict):
        return next(filter(None, map(_foreign, value.values())), "")
    if isinstance(value, list):
        return next(filter(None, map(_foreign, value)), "")
    return ""


class VariableReader:
    """One host's merged variables: the strongest setting of each."""

    def __init__(self, merged: Mapping[str, Setting]) -> None:
        self._merged = merged

    def get(self, *names: str) -> Setting | None:
        """The last of these names that is set, or None; the names are aliases of one variable."""
        found = None
        for name in names:
            setting = self._merged.get(name)
            found = setting if setting is not None and setting.value is not None else found
        return None if found is None else usable(found)

    def text(self, *names: str) -> str | None:
        """Text that is not empty; a number is taken as it is written."""
        setting = self.get(*names)
        if setting is None:
            return None
        value = setting.value
        if isinstance(value, (int, float)) and setting.text is not None:
            value = setting.text
        if not isinstance(value, str) or not value.strip() or not value.replace("\n", "").isprintable():
            refuse_value(setting, "text", "give it, quoted, or remove the key")
        return value.strip()

    def line(self, *names: str) -> str | None:
        """Text without a line break."""
        text = self.text(*names)
        setting = self.get(*names)
        if text is not None and setting is not None and "\n" in text:
            refuse_value(setting, "one line", "remove the line break")
        return text

    def number(self, *names: str, least: int, most: int, expected: str) -> int | None:
        """A whole number within bounds."""
        setting = self.get(*names)
        if setting is None:
            return None
        number = whole_number(setting.value)
        if number is None or not least <= number <= most:
            refuse_value(setting, expected, "write it as a plain number")
        return number

    def choice(self, name: str, choices: Sequence[str]) -> str | None:
        """One of a few values."""
        setting = self.get(name)
        if setting is None:
            return None
        if setting.value not in choices:
            close = get_close_matches(str(setting.value), choices, n=1)
            remedy = f"did you mean {close[0]}?" if close else "write one of them"
            refuse_value(setting, " or ".join([", ".join(choices[:-1]), choices[-1]]), remedy)
        return str(setting.value)

    def arguments(self, *names: str) -> tuple[str, ...]:
        """Command line arguments, split as a shell would split them."""
        text, setting = self.text(*names), self.get(*names)
        if text is None or setting is None:
            return ()
        try:
            return tuple(shlex.split(text))
        except ValueError as error:
            refuse_value(setting, f"arguments as on a command line ({error})", "balance the quotes")

    def shell_lines(self, name: str) -> tuple[str, ...]:
        """Shell lines: a text of one or more lines, or a list of such texts."""
        setting = self.get(name)
        if setting is None:
            return ()
        parts = setting.value if isinstance(setting.value, list) else [setting.value]
        if not all(isinstance(part, str) and "\0" not in part for part in parts):
            refuse_value(setting, "text, or a list of texts", "quote each line")
        return tuple(line for part in parts for line in part.splitlines() if line.strip())


def whole_number(value: object) -> int | None:
    """A whole number, also from a text of digits as Ansible's tools write it; else None (also for True, False)."""
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    if isinstance(value, str) and value.isascii() and value.isdigit() and len(value) < 10:
        return int(value)
    return None
