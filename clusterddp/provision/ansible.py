"""Runs Ansible's own programs: finds them, builds a playbook's command line, runs it at the user's terminal."""

from __future__ import annotations

import logging
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from clusterddp.errors import ClusterddpError, UsageError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from clusterddp.inventory import Inventory

_log = logging.getLogger("clusterddp")
_BRIEF_ENV = {"ANSIBLE_DISPLAY_OK_HOSTS": "false", "ANSIBLE_DISPLAY_SKIPPED_HOSTS": "false"}
_CONFIG = "ansible.cfg"
_EMPTY_CONFIG = Path(__file__).with_name("empty.cfg")  # ansible-core 2.19 refuses /dev/null
_OWN_FOLDER = ".clusterddp"
# As ansible-playbook reads it: after short options without a value, as the beginning of its name, with = or without.
_USER = re.compile(r"(?:-[bCDJkKv]*u|--u(?:s(?:er?)?)?(?==|$))=?(?P<value>.*)", re.DOTALL)
# Not allowed in a host name where Ansible takes patterns: `@x` is a file, `~x` an expression, `!x` all others.
_PATTERN_CHARACTERS = re.compile(r"[@~!&,;:*?\[\]{}]")
# The first line of an inventory file that we converted; the second line names the original.
CONVERTED_HEADER = "# By Ansible, for `clusterddp up`; what is changed here is lost with the next one. From:"


def program(name: str) -> str:
    """Return the path of a program of Ansible's, such as ``ansible-playbook``: beside our Python, else on PATH."""
    next_to_python = Path(sys.executable).with_name(name)
    path = str(next_to_python) if next_to_python.is_file() else shutil.which(name)
    if path is None:
        raise ClusterddpError(f"{name} is not installed", remedy="`pip install ansible-core` brings it")
    return path


def playbook_argv(
    playbook: Path, source: Path, inventory: Inventory, arguments: Sequence[str], *, hosts: Sequence[str] = ()
) -> list[str]:
    """Return the command line that runs a playbook on an inventory's hosts (or only on ``hosts``).

    ``-u NAME`` among the ``arguments`` overrides ``ansible_user`` of the inventory, though Ansible itself would ignore
    it; the variable ``login_user`` holds the inventory's user then. Raises ``UsageError`` for a host name that Ansible
    would read as a pattern.
    """
    if pattern_like := next((name for name in hosts if _PATTERN_CHARACTERS.search(name)), ""):
        remedy = "name the host plainly and put its address into ansible_host"
        raise UsageError(f"Ansible would read the host name {pattern_like!r} as a pattern", remedy=remedy)
    where = ["-i", str(source), *(["--limit", ",".join(hosts)] if hosts else [])]
    return [program("ansible-playbook"), *where, *_as_user(inventory, arguments), str(playbook), *arguments]


def _as_user(inventory: Inventory, arguments: Sequence[str]) -> list[str]:
    """Return arguments that make ``-u`` override the inventory's user."""
    name = ["", *_user_option_values(arguments)][-1]
    inventory_users = {host.user for host in inventory.run_hosts} - {None}
    if not name:
        return []
    login = ["-e", f"login_user={inventory_users.pop()}"] if len(inventory_users) == 1 else []
    return ["-e", f"ansible_user={name}", *login]


def _user_option_values(arguments: Sequence[str]) -> Iterator[str]:
    for index, argument in enumerate(arguments):
        found = _USER.fullmatch(argument)
        if found:
            yield from [found["value"]] if found["value"] else arguments[index + 1 : index + 2]


def run_at_terminal(argv: Sequence[str], inventory: Path, *, brief: bool = False) -> int:
    """Run one of Ansible's programs at this terminal, where it may ask for passwords, and return its exit code.

    ``inventory`` is the file the user named (see ``environment``). ``brief`` shows only those tasks of a playbook that
    change something or fail, unless the user's environment sets Ansible's display otherwise.
    """
    _log.debug("%s", shlex.join(argv))
    return subprocess.run(argv, check=False, env={**(_BRIEF_ENV if brief else {}), **environment(inventory)}).returncode


def environment(inventory: Path) -> dict[str, str]:
    """The environment for Ansible, which uses an ``ansible.cfg`` in this folder, with its plugins, only by consent.

    Consent is given by naming an inventory in the same folder or below it, or by ANSIBLE_CONFIG.
    """
    if not config_notice(inventory):
        return {**os.environ}
    others = (Path(os.path.expanduser(f"~/.{_CONFIG}")), Path("/etc/ansible", _CONFIG))  # noqa: PTH111 - Path's raises
    config = next((path for path in others if os.path.isfile(path)), _EMPTY_CONFIG)  # noqa: PTH113 - Path's raises
    return {**os.environ, "ANSIBLE_CONFIG": str(config)}


def config_notice(inventory: Path) -> str:
    """Return the message that Ansible will not use this folder's ``ansible.cfg``; empty if it does, or without one."""
    here, path = Path.cwd().resolve(), inventory.absolute().parent.resolve() / inventory.name
    named_here = here in path.parents and _OWN_FOLDER not in path.relative_to(here).parts
    if "ANSIBLE_CONFIG" in os.environ or named_here or not (here / _CONFIG).exists():
        return ""
    why = f"Ansible is not given {_CONFIG} of this folder, as the inventory lies elsewhere"
    return f"{why}; ANSIBLE_CONFIG={_CONFIG} gives it"


def source_of(inventory: Inventory) -> Path:
    """The file to run a playbook with: the original that the inventory was converted from, if there; else its own."""
    path = inventory.path
    if path is None:
        raise UsageError("a playbook needs an inventory file", remedy="`clusterddp up INVENTORY` remembers one")
    with path.open(encoding="utf-8", errors="surrogateescape") as file:
        converted = file.readline().rstrip("\n") == CONVERTED_HEADER
        source = Path(file.readline().removeprefix("# ").rstrip("\n"))
    return source if converted and os.path.exists(source) else path  # noqa: PTH110 - Path's raises
