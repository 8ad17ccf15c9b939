"""Ansible's own programs: where they are, what to do without them, a playbook run at the user's terminal."""

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
_BRIEF = {"ANSIBLE_DISPLAY_OK_HOSTS": "false", "ANSIBLE_DISPLAY_SKIPPED_HOSTS": "false"}
_CONFIG = "ansible.cfg"
_OURS = ".clusterddp"
_USER = ("-u", "--user")
# What no host's name may hold where Ansible takes patterns: `@x` is a file, `~x` an expression, `!x` all others.
_OF_PATTERNS = re.compile(r"[@~!&,;:*?\[\]{}]")
# The first line of an inventory that we had converted; the second names the original.
FROM = "# By ansible-inventory, for `clusterddp up`; what is changed here is lost with the next one. From:"


def program(name: str) -> str:
    """The path of ``ansible-playbook`` or another program of Ansible's: beside our interpreter, else on PATH.

    Raises:
        ClusterddpError: it is not installed; the remedy installs it.
    """
    beside = Path(sys.executable).with_name(name)
    found = str(beside) if beside.is_file() else shutil.which(name)
    if found is None:
        raise ClusterddpError(f"{name} is not installed", remedy="`pip install ansible-core` brings it")
    return found


def playbook_argv(
    playbook: Path, source: Path, inventory: Inventory, arguments: Sequence[str], *, hosts: Sequence[str] = ()
) -> list[str]:
    """The command line that runs a playbook on hosts of an inventory.

    ``-u NAME`` among the arguments wins over ``ansible_user`` of the inventory, which Ansible itself ignores it for;
    ``login_user`` is whom the inventory says then.

    Args:
        playbook: Its file.
        source: The inventory's file.
        inventory: What was read of it.
        arguments: Further arguments of ansible-playbook's.
        hosts: Only these hosts.

    Raises:
        UsageError: a host's name means something else to Ansible.
    """
    if odd := next((name for name in hosts if _OF_PATTERNS.search(name)), ""):
        remedy = "name the host plainly and put its address into ansible_host"
        raise UsageError(f"Ansible would read the host name {odd!r} as a pattern", remedy=remedy)
    where = ["-i", str(source), *(["--limit", ",".join(hosts)] if hosts else [])]
    return [program("ansible-playbook"), *where, *_as_user(inventory, arguments), str(playbook), *arguments]


def _as_user(inventory: Inventory, arguments: Sequence[str]) -> list[str]:
    """Variables that make ``-u`` hold."""
    name = next(_users(arguments), "")
    usual = {host.user for host in inventory.nodes + inventory.spares} - {None}
    if not name:
        return []
    login = ["-e", f"login_user={usual.pop()}"] if len(usual) == 1 else []
    return ["-e", f"ansible_user={name}", *login]


def _users(arguments: Sequence[str]) -> Iterator[str]:
    for place, word in enumerate(arguments):
        if word in _USER:
            yield from arguments[place + 1 : place + 2]
        elif word.startswith("--user="):
            yield word.removeprefix("--user=")
        elif word.startswith("-u"):
            yield word.removeprefix("-u")


def run_at_terminal(argv: Sequence[str], inventory: Path, *, brief: bool = False) -> int:
    """Run one of Ansible's programs with this terminal, where it may ask for passwords; its exit code.

    Args:
        argv: The program and its arguments.
        inventory: What the user has named; see ``environment``.
        brief: Of a playbook's tasks only those are shown that change something or fail, if the user's settings in the
            environment do not say otherwise.
    """
    _log.debug("%s", shlex.join(argv))
    return subprocess.run(argv, check=False, env={**(_BRIEF if brief else {}), **environment(inventory)}).returncode


def environment(inventory: Path) -> dict[str, str]:
    """The variables for Ansible: it takes an ``ansible.cfg`` of this folder, whose plugins run here, only by consent.

    That is given by naming an inventory in the same folder or below it, or by ANSIBLE_CONFIG.
    """
    if not config_notice(inventory):
        return {**os.environ}
    others = (Path(os.path.expanduser(f"~/.{_CONFIG}")), Path("/etc/ansible", _CONFIG))  # noqa: PTH111 - Path's raises
    return {**os.environ, "ANSIBLE_CONFIG": str(next((path for path in others if path.is_file()), os.devnull))}


def config_notice(inventory: Path) -> str:
    """What to say of an ``ansible.cfg`` of this folder that Ansible is not given; empty where it has none."""
    here, path = Path.cwd(), inventory.absolute()
    named_here = here in path.parents and _OURS not in path.relative_to(here).parts
    if "ANSIBLE_CONFIG" in os.environ or named_here or not (here / _CONFIG).exists():
        return ""
    why = f"Ansible is not given {_CONFIG} of this folder, as the inventory lies elsewhere"
    return f"{why}; ANSIBLE_CONFIG={_CONFIG} gives it"


def source_of(inventory: Inventory) -> Path:
    """The file a playbook is run with: what the inventory was converted from, while it is there; else its own.

    Raises:
        UsageError: the inventory has no file.
    """
    path = inventory.path
    if path is None:
        raise UsageError("a playbook needs an inventory file", remedy="`clusterddp up INVENTORY` remembers one")
    with path.open(encoding="utf-8", errors="surrogateescape") as file:
        made = file.readline().rstrip("\n") == FROM
        source = Path(file.readline().removeprefix("# ").rstrip("\n"))
    return source if made and source.exists() else path
