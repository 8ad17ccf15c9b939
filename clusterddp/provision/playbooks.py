"""The playbooks that come with clusterddp, by name, and which of them mend what the doctor has found."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from clusterddp.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from clusterddp.checks.model import CheckResult

_PACKAGE = Path(__file__).parent.parent
# In a wheel they lie in the package; in a source tree they are those that people read.
_PLACES = (_PACKAGE / "playbooks", _PACKAGE.parent / "playbooks")
NAMES = ("hosts.yml", "firewall.yml", "users.yml", "python.yml", "nvidia.yml")


def find_playbook(name: str) -> Path:
    """A playbook: a file, else one of ours by its name (``hosts.yml``).

    Raises:
        UsageError: it is neither.
    """
    return Path(name) if Path(name).is_file() else own_playbook(Path(name).name)


def own_playbook(name: str) -> Path:
    """A playbook of ours by its name, whatever lies in the current folder: ``hosts.yml`` may be an inventory there.

    Raises:
        UsageError: we have none of that name.
    """
    place = next((place / name for place in _PLACES if (place / name).is_file()), None)
    if name not in NAMES or place is None:
        raise UsageError(f"there is no playbook {name}", remedy=f"give a file, or one of ours: {', '.join(NAMES)}")
    return place


def mending(results: Iterable[CheckResult]) -> dict[str, dict[str, list[str]]]:
    """Playbook → check → hosts, of what the doctor has found and one of our playbooks mends."""
    found: dict[str, dict[str, list[str]]] = {}
    for result in results:
        if result.playbook:
            hosts = found.setdefault(result.playbook, {}).setdefault(result.name, [])
            hosts += [host for host in result.hosts if host not in hosts]
    return dict(sorted(found.items(), key=lambda one: NAMES.index(one[0])))
