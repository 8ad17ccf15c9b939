"""The playbooks that come with clusterddp, and which of them repair what `doctor` has found."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from clusterddp.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from clusterddp.checks.model import CheckResult

_PACKAGE = Path(__file__).parent.parent
# A wheel has them inside the package, a source tree at the top.
_PLACES = (_PACKAGE / "playbooks", _PACKAGE.parent / "playbooks")
NAMES = ("hosts.yml", "firewall.yml", "users.yml", "python.yml", "nvidia.yml")


def find_playbook(name: str) -> Path:
    """The path of a playbook: a file, else one of ours by its name (``hosts.yml``); ``UsageError`` if it is neither."""
    return Path(name) if Path(name).is_file() else own_playbook(Path(name).name)


def own_playbook(name: str) -> Path:
    """The path of one of our playbooks; a file of that name in the current folder may be an inventory: ignored."""
    path = next((path / name for path in _PLACES if (path / name).is_file()), None)
    if name not in NAMES or path is None:
        raise UsageError(f"there is no playbook {name}", remedy=f"give a file, or one of ours: {', '.join(NAMES)}")
    return path


def mending(results: Iterable[CheckResult]) -> dict[str, dict[str, list[str]]]:
    """Playbook → check → hosts, for the findings that one of our playbooks repairs."""
    found: dict[str, dict[str, list[str]]] = {}
    for result in results:
        if result.playbook:
            hosts = found.setdefault(result.playbook, {}).setdefault(result.name, [])
            hosts += [host for host in result.hosts if host not in hosts]
    return dict(sorted(found.items(), key=lambda one: NAMES.index(one[0])))
