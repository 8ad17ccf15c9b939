"""Makes the commented inventory of ``init`` from ssh_config or the host files of Slurm, DeepSpeed and MPI."""

from __future__ import annotations

import re
import shlex
from typing import Any

import yaml

from clusterddp.errors import InventoryError
from clusterddp.inventory.hostlist import LOWEST_PORT, from_host_list
from clusterddp.inventory.ssh_config import hosts_of_ssh_config, is_ssh_config, names_of_ssh_config
from clusterddp.remote.shared.names.host_names import folded_words
from clusterddp.remote.shared.slurm.nodelist import expand_nodelist

_MOST_SLOTS = r"(?:\s+max[-_]slots\s*=\s*[0-9]+)?"
_HOST = r"(?:(?P<user>[^\s:=#@]+)@)?(?P<host>[^\s:=#@]+)"
_SLOTS = re.compile(rf"{_HOST}{_MOST_SLOTS}(?:[\s:]+(?:slots\s*=\s*)?(?P<slots>[0-9]+))?{_MOST_SLOTS}")
_SAYS_SLOTS = re.compile(r"^[^#\n]*slots\s*=", re.MULTILINE)
_COUNTED = re.compile(r"[\w.-]+:([0-9]{1,5})")
_NODE_NAME = re.compile(r"^NodeName=(?P<hosts>\S+)", re.MULTILINE | re.IGNORECASE)
_MAX_HOSTS = 10_000  # hosts

_HEAD = """\
# The machines to train on, in Ansible's format; made by `clusterddp init` from {origin}.
# Its order is that of the ranks. `clusterddp up {name}` reaches them and says what is missing.
"""
_TAIL = """\
  # vars:                                       # for all hosts; `vars` of a group or of one host win
  #   ansible_user: alice                       # else what ~/.ssh/config says
  #   clusterddp_python: /opt/train/bin/python  # the Python that has torch (python)
  #   clusterddp_setup: module load cuda        # shell lines before anything of a job
  #   clusterddp_env: {OMP_NUM_THREADS: 8}      # for all workers
"""


def hosts_of(text: str, *, in_effect: bool = False) -> dict[str, dict[str, Any]]:
    """Each host's name, or range of names, with its variables.

    ``text`` is an ssh_config file, recognised by its ``Host`` lines; or a host file with ``gpu01``, ``gpu01 slots=8``
    (DeepSpeed, Open MPI), ``gpu01:8`` (MPICH), ``gpu01:4,gpu02:4`` (horovodrun's -H) or ``gpu[01-04,07]`` (Slurm) on
    each line; or ``NodeName=`` lines of a slurm.conf. With ``in_effect`` it is an ssh_config that ssh reads anyway, so
    names suffice. Raises ``InventoryError`` for another line, or if there is no host.
    """
    found: dict[str, dict[str, Any]] = {}
    if in_effect:
        found = {name: {} for name in names_of_ssh_config(text)}
    elif is_ssh_config(text):
        found = hosts_of_ssh_config(text)
    elif slurm := _NODE_NAME.findall(text):
        found = {name: {} for names in slurm if names.upper() != "DEFAULT" for name in _ranges(names)}
    else:
        for number, line in enumerate(text.splitlines(), 1):
            found.update(_host_of_line(line.partition("#")[0].strip(), number))
    if not found:
        raise InventoryError("names no host", remedy="give host names: `clusterddp init gpu01,gpu02`")
    return found


def host_file_kind(text: str, *, names: bool = False) -> str:
    """Name the kind of a file that `init` reads and Ansible would misread; empty for any other file.

    Ansible takes ``slots=8`` for a variable, and ``gpu01:8`` for a port. ``names``: also a file of names alone, which
    may be an INI inventory as well.
    """
    if is_ssh_config(text):
        return "an ssh_config"
    if _NODE_NAME.search(text):
        return "a slurm.conf"
    try:
        slots = [host["clusterddp_nproc"] for host in hosts_of(text).values() if "clusterddp_nproc" in host]
    except InventoryError:
        return ""
    if slots and (_SAYS_SLOTS.search(text) or max(slots) < LOWEST_PORT):
        return "a host file with numbers of processes"
    return "a host file" if names and not slots else ""


def _host_of_line(line: str, number: int) -> dict[str, dict[str, Any]]:
    """The hosts on one line of a host file, with their variables; ``number`` is the line's, for the error."""
    if not line:
        return {}
    if "[" in line and not line.startswith("["):
        return {name: {} for name in _ranges(line)}
    found = {}
    for item in line.split(","):
        match = _SLOTS.fullmatch(item.strip())
        if match is None:
            raise InventoryError(f"line {number}: {line[:60]!r} names no host", remedy="write gpu01, or gpu01 slots=8")
        if match["slots"] and not int(match["slots"]):
            raise InventoryError(
                f"line {number}: {match['host']} has 0 slots", remedy="write 1 or more, or leave the host out"
            )
        variables = {"ansible_user": match["user"], "clusterddp_nproc": match["slots"] and int(match["slots"])}
        found[match["host"]] = {name: value for name, value in variables.items() if value is not None}
    return found


def _ranges(text: str) -> list[str]:
    """Slurm's ``gpu[01-04],login`` in the spelling of inventories: ``gpu[01:04]``, ``login``."""
    try:
        return folded_words(expand_nodelist("".join(text.split())))
    except ValueError as error:
        raise InventoryError(str(error), remedy="write it as Slurm does: gpu[01-04,07],login") from error


def inventory_text(hosts: dict[str, dict[str, Any]], *, origin: str, name: str) -> str:
    """The commented inventory of these hosts; ``origin`` says where they come from, ``name`` is the file it will be."""
    if len(hosts) > _MAX_HOSTS:
        raise InventoryError(f"{len(hosts)} hosts are more than {_MAX_HOSTS}", remedy="give a part of them")
    for host in hosts:
        from_host_list(host)  # raises for an invalid name
    slots = {host.get("clusterddp_nproc") for host in hosts.values()}
    body = yaml.safe_dump({"all": {"hosts": hosts}}, sort_keys=False, allow_unicode=True)
    body = body.replace(": {}\n", ":\n").replace(": null\n", ":\n")
    note = "# clusterddp_nproc is what the file calls slots: processes on that host.\n" if slots - {None} else ""
    return _HEAD.format(origin=origin, name=shlex.quote(name)) + note + body + _TAIL


def hosts_of_list(text: str) -> dict[str, dict[str, Any]]:
    """The hosts of a host list such as ``alice@gpu01,gpu02:2222``, with their variables.

    Where every host has a number that cannot be a port, the list is horovodrun's ``gpu01:4,gpu02:4``.
    """
    if all((match := _COUNTED.fullmatch(item)) and int(match[1]) < LOWEST_PORT for item in text.split(",")):
        return hosts_of(text)
    found: dict[str, dict[str, Any]] = yaml.safe_load(from_host_list(text))["all"]["hosts"]
    return found
