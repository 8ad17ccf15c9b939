"""Find packages that a script took long to import, and what naming them in clusterddp_preload would save."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from typing import TYPE_CHECKING

from clusterddp.errors import UsageError
from clusterddp.remote.shared.run.event_schema import of_kind

if TYPE_CHECKING:
    from collections.abc import Iterable

    from clusterddp.project.project import Project
    from clusterddp.remote.shared.verdict.node_report import NodeReport

HINT_FILE = "preload-hint"  # in the project's folder: the names in the last hint
_MAX_HINT_LENGTH = 4096  # characters of that file


@dataclass(frozen=True, kw_only=True, slots=True)
class SlowImports:
    """The time that rank 0 spent importing installed packages that a fork server could have preloaded."""

    modules: tuple[str, ...]
    seconds: float

    @property
    def line(self) -> str:
        """The message for the user."""
        names = ", ".join(self.modules)
        spent = f"{self.seconds:.1f} s of each start went into importing {names}"
        return f"{spent}: clusterddp_preload: [{names}] would save that"


def slow_imports(nodes: Iterable[NodeReport]) -> SlowImports | None:
    """Return what rank 0's last start recorded about slow imports; None if nothing."""
    events = [event for node in nodes for event in of_kind(node.events, "slow_imports")]
    if not events:
        return None
    last = max(events, key=lambda event: event.time)
    return SlowImports(modules=_without_inner_parents(last.modules), seconds=last.seconds)


def _without_inner_parents(modules: Iterable[str]) -> tuple[str, ...]:
    """Drop a package if a submodule of it is in the list: importing the submodule imports the package."""
    names = tuple(modules)
    return tuple(name for name in names if not any(other.startswith(f"{name}.") for other in names))


def is_new(project: Project, found: SlowImports) -> bool:
    """Whether this hint is new to the project's user; remember it as shown."""
    path, names = project.folder / HINT_FILE, ", ".join(sorted(found.modules))
    try:
        last_hint = path.read_text(encoding="utf-8", errors="replace")[:_MAX_HINT_LENGTH] if path.is_file() else ""
    except OSError:  # the hint is shown once more
        last_hint = ""
    if last_hint.strip() == names:
        return False
    with contextlib.suppress(UsageError):  # it cannot be written: the hint is shown again
        project.write(HINT_FILE, f"{names}\n".encode())
    return True
