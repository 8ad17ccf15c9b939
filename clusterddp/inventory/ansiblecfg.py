"""Detects settings in ``ansible.cfg`` that would change a connection: we do not obey them, but warn."""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING

from clusterddp.project.project_folder import read
from clusterddp.project.user_folders import user_path

if TYPE_CHECKING:
    from pathlib import Path

# Section and name of a setting → the inventory variable with the same effect.
_EQUIVALENTS = {
    ("defaults", "remote_user"): "ansible_user",
    ("defaults", "remote_port"): "ansible_port",
    ("defaults", "private_key_file"): "ansible_ssh_private_key_file",
    ("defaults", "interpreter_python"): "ansible_python_interpreter",
    ("defaults", "transport"): "ansible_connection",
    ("defaults", "host_key_checking"): "-o StrictHostKeyChecking in ansible_ssh_common_args",
    ("ssh_connection", "ssh_args"): "ansible_ssh_common_args",
    ("ssh_connection", "ssh_common_args"): "ansible_ssh_common_args",
    ("ssh_connection", "ssh_extra_args"): "ansible_ssh_extra_args",
}
_MAX_BYTES = 1 << 20


def ansible_cfg_notices() -> list[str]:
    """One line for each setting that Ansible would obey here and we do not; empty without an ansible.cfg."""
    path = _config_path()
    settings = _settings(path) if path else set()
    return [
        f"{path}: {name} is not read; set {ours} in the inventory"
        for (section, name), ours in _EQUIVALENTS.items()
        if (section, name) in settings
    ]


def _settings(path: Path) -> set[tuple[str, str]]:
    """Sections and names of a file's settings; none if it cannot be read.

    configparser's time grows with the square of the blanks in a line, and of the number of lines that are no setting.
    """
    try:
        text = read(path, _MAX_BYTES, follow_link=True).decode(errors="replace")
    except OSError:
        return set()
    found, section = set(), ""
    for line in map(str.strip, text.splitlines()):
        if line.startswith("["):
            section = line[1:].partition("]")[0]
        found.add((section, re.split("[=:]", line, maxsplit=1)[0].strip().lower()))
    return found


def _config_path() -> Path | None:
    """The ansible.cfg that Ansible would use, in its order of search."""
    candidates = [os.environ.get("ANSIBLE_CONFIG") or "", "ansible.cfg", "~/.ansible.cfg", "/etc/ansible/ansible.cfg"]
    paths = [user_path(candidate) for candidate in candidates if candidate]
    # Path's own raises where a folder above may not be searched.
    return next((path for path in paths if os.path.isfile(path)), None)  # noqa: PTH113
