"""Declare an option of a run once: its reader, its default, and how the command line and the documentation show it."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

T = TypeVar("T")
_KEY = "declaration"


@dataclass(frozen=True, kw_only=True, slots=True)
class Declaration:
    """What is declared of one option, besides its name, type and default, which its field has."""

    read: Callable[[Any], object]  # checks a value from Python or a command line, and returns the one to keep
    doc: str  # the meaning, for Python's users, in reStructuredText; the API's page shows it
    accepts: str = ""  # the type that the keyword takes where that is wider than the field's; else empty
    help: str = ""  # the line of ``run --help``; empty: ``run`` does not make its option from this declaration
    metavar: str | None = None  # stands for the value in the help; None: click's own
    short: str = ""  # the short flag, such as ``-m``, or empty
    complete: str = ""  # the function of ``cli/completion.py`` that completes the value, or empty
    # whether ``CLUSTERDDP_<NAME>`` and ``[tool.clusterddp]`` set it, too. A clone brings the latter along: only for an
    # option that runs no program here, names no file, and sends nothing of this environment.
    setting: bool = False


def option(read: Callable[[Any], T], *, default: T, **declaration: Any) -> T:
    """Declare a field that has a default; ``declaration``: the rest of its ``Declaration``."""
    metadata = {_KEY: Declaration(read=read, **declaration)}
    if isinstance(default, dict):
        return field(default_factory=dict, metadata=metadata)  # type: ignore[return-value] # an empty one is meant
    return field(default=default, metadata=metadata)


def required_option(read: Callable[[Any], object], **declaration: Any) -> Mapping[str, Declaration]:
    """Return the metadata of a field without a default, for ``dataclasses.field``."""
    return {_KEY: Declaration(read=read, **declaration)}


def declarations(kind: type[Any]) -> dict[str, Declaration]:
    """Return the declarations of a class's fields by their names, in their order."""
    return {entry.name: entry.metadata[_KEY] for entry in fields(kind)}
