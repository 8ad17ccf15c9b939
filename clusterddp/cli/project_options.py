"""Options that ``[tool.clusterddp]`` of a pyproject.toml may set, and their values as on a command line.

A clone brings this file along, so an option is allowed only if it can run no program on this machine, send nothing of
this machine's environment anywhere, and name no file to be read or written; or if it can wait for consent.
"""

from __future__ import annotations

import difflib
from typing import TYPE_CHECKING

from clusterddp.errors import UsageError
from clusterddp.launch.options import DECLARED

if TYPE_CHECKING:
    from clusterddp.project.project import Project

HOST_OPTIONS = frozenset({"gpus", "nproc_per_node"})  # defaults of variables of the inventory
CONSENT_OPTIONS = frozenset({"inventory", "python"})  # used only once the user has agreed
INVENTORY_OPTIONS = frozenset({*CONSENT_OPTIONS, "limit"})
RUN_SETTINGS = frozenset(name for name, declared in DECLARED.items() if declared.setting)
WATCHING_OPTIONS = frozenset({"fold", "show", "show_agents", "show_all", "silence"})
COMMAND_OPTIONS = (RUN_SETTINGS - HOST_OPTIONS) | WATCHING_OPTIONS
KEYS = HOST_OPTIONS | INVENTORY_OPTIONS | COMMAND_OPTIONS
_PROJECT_KEY = "project"  # project.py reads it


def current_project() -> Project:
    """Return the project that the current folder belongs to."""
    from clusterddp.project.project import find  # noqa: PLC0415 - --help asks for no project

    return find()


def project_settings(project: Project) -> dict[str, str]:
    """Return pyproject.toml's settings by click's names, as on a command line; raises UsageError for a wrong one."""
    settings = {}
    for key, value in project.options.items():
        name = key.replace("-", "_")
        if key == _PROJECT_KEY:
            continue
        if name not in KEYS:
            raise UsageError(f"{option_location(project, name)}: no such option", remedy=_suggestion(name))
        if not isinstance(value, str | int | float):
            raise UsageError(
                f"{option_location(project, name)}: {value!r} is not one value", remedy="write it as on the line"
            )
        if name == "limit" and "@" in str(value):  # no host's name has one
            raise UsageError(
                f"{option_location(project, name)}: @ reads a file", remedy="give it on the line: --limit @FILE"
            )
        settings[name] = str(value).lower() if isinstance(value, bool) else str(value)
    return settings


def option_location(project: Project, name: str) -> str:
    """Return ``file:key`` of an option, spelled as in the file."""
    spelled = next((key for key in project.options if key.replace("-", "_") == name), name)
    return f"{project.root / 'pyproject.toml'}:tool.clusterddp.{spelled}"


def _suggestion(name: str) -> str:
    """Return the remedy for an unknown key: the closest one, else all."""
    near = difflib.get_close_matches(name, KEYS, 1)
    if near:
        return f"did you mean {near[0].replace('_', '-')}?"
    return "known are " + ", ".join(sorted(key.replace("_", "-") for key in KEYS | {_PROJECT_KEY}))
