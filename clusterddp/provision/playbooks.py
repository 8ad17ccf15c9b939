"""The playbooks that come with clusterddp, and which of them repair what `doctor` has found."""

from __future__ import annotations

from pathlib import Path

from clusterddp.errors import UsageError

_PACKAGE = Path(__file__).parent.parent
# A wheel has them inside the package, a source tree at the top.
_PLACES = (_PACKAGE / "playbooks", _PACKAGE.parent / "playbooks")
NAMES = ("hosts.yml", "firewall.yml", "users.yml", "python.yml", "nvidia.yml")


def find_playbook(name: str) -> Path:
    """Return a playbook's path: one of ours by its name (``hosts.yml``), else a file; raises UsageError.

    A file of such a name in the current folder is ``./hosts.yml``.
    """
    return Path(name) if name not in NAMES and Path(name).is_file() else own_playbook(name)


def own_playbook(name: str) -> Path:
    """Return the path of one of our playbooks, whatever file of that name is in the current folder."""
    path = next((path / name for path in _PLACES if (path / name).is_file()), None)
    if name not in NAMES or path is None:
        raise UsageError(f"there is no playbook {name}", remedy=f"give a file, or one of ours: {', '.join(NAMES)}")
    return path
