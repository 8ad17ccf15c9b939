"""Which packages a run's script spent long importing, and what naming them in clusterddp_preload would save."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from clusterddp.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from clusterddp.project import Project

TOLD = "preload-hint"  # in the project's folder: the names that were told last
_LONGEST = 4096  # characters of that


@dataclass(frozen=True, kw_only=True, slots=True)
class SlowImports:
    """What rank 0 spent importing installed packages that a fork server could have imported before."""

    modules: tuple[str, ...]
    seconds: float

    @property
    def line(self) -> str:
        """What the user is told."""
        names = ", ".join(self.modules)
        spent = f"{self.seconds:.1f} s of each start went into importing {names}"
        return f"{spent}: clusterddp_preload: [{names}] would save that"


def slow_imports(nodes: Iterable[Mapping[str, Any]]) -> SlowImports | None:
    """What the last start of rank 0 has put on record; None where that is nothing."""
    events = [event for node in nodes for event in node.get("events", ()) if event["event"] == "slow_imports"]
    if not events:
        return None
    last = max(events, key=lambda event: event["time"])
    return SlowImports(modules=_without_inner_parents(last["modules"]), seconds=last["seconds"])


def _without_inner_parents(modules: Iterable[str]) -> tuple[str, ...]:
    """The modules but for those that another one imports by being inside."""
    names = tuple(modules)
    return tuple(name for name in names if not any(other.startswith(f"{name}.") for other in names))


def is_new(project: Project, found: SlowImports) -> bool:
    """Whether the project's user has not been told of just these; from now on he has."""
    path, names = project.folder / TOLD, ", ".join(sorted(found.modules))
    try:
        told = path.read_text(encoding="utf-8", errors="replace")[:_LONGEST] if path.is_file() else ""
    except OSError:  # it is told once more
        told = ""
    if told.strip() == names:
        return False
    with contextlib.suppress(UsageError):  # it cannot be written: it is told once more
        project.write(TOLD, f"{names}\n".encode())
    return True
