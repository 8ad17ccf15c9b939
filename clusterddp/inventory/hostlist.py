"""Writes an inventory from a list of hosts on the command line: ``alice@gpu01,gpu02:2222,[::1]:22,n[01:04]``.

Its first line holds a digest of the others, so that a user's changes can be detected.
"""

from __future__ import annotations

import difflib
import hashlib
import re
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from clusterddp.errors import InventoryError, UsageError
from clusterddp.inventory import validate
from clusterddp.inventory.ranges import RANGE_REMEDY, expand, split_port
from clusterddp.inventory.variables.variable_names import USED, check_name
from clusterddp.inventory.yamlfile import compose
from clusterddp.remote.shared.text.redaction import HIDDEN, hide_url_passwords
from clusterddp.remote.shared.text.secret_names import hide_assigned, is_secret

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

_HEADER = "# Written by `clusterddp up` from a host list; an Ansible inventory, edit it as you like. ({})\n"
_NAME = re.compile(r"([\w-]+)[\"']?\s*:|\?\s+[\"']?([\w-]+)[\"']?\s*$")  # `name:`, or `? name` with `: value` below
_GOES_ON = re.compile(r"[-:](?:\s|$)")  # a list's item or a value, which may stand in the column of their name
_MAX_LINES = 40  # shown of a difference
_WIDTH = 1 << 20  # a mapping in braces stays on the line of its name, where `difference` hides the secrets in it
_SUFFIXES = {".yaml", ".yml", ".json", ".ini"}  # of files alone
_AMBIGUOUS_SUFFIXES = {".cfg", ".conf", ".toml", ".txt", ".md", ".py", ".sh"}  # a host name may end like these
LOWEST_PORT = 22  # no SSH server listens below; in other launchers the number after a colon counts processes
_REMEDY = "write them as alice@gpu01,gpu02:2222"


class _Dumper(yaml.SafeDumper):
    """Writes composed nodes with their scalars as they were written."""


_Dumper.add_multi_representer(yaml.Node, lambda _, node: node)


def from_host_list(text: str, variables: Mapping[str, Any] | None = None) -> str:
    """The YAML inventory that a host list stands for.

    ``text`` has items ``[user@]host[:port]`` separated by commas; a host may be a range or an IPv6 address, the latter
    in brackets if a port follows. ``variables`` are for all hosts. Raises ``InventoryError`` for an item that is not a
    host, or a host given twice.
    """
    hosts: dict[str, dict[str, Any]] = {}
    seen: set[str] = set()
    for item in filter(None, (part.strip() for part in text.split(","))):
        name, own_variables = _read_item(item)
        twice = seen.intersection(expand(name, item)[0])
        if twice:
            raise InventoryError(f"{min(twice)!r} is given twice", where=f"host list {text!r}", remedy="remove one")
        seen.update(expand(name, item)[0])
        hosts[name] = own_variables
    if not hosts:
        raise InventoryError(f"host list {text!r} names no host", remedy=_REMEDY)
    whole = {"hosts": hosts, **({"vars": dict(variables)} if variables else {})}
    body = yaml.dump({"all": whole}, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=_WIDTH)
    return _HEADER.format(_digest(body)) + body


def means_file(text: str) -> bool:
    """Whether a text that is not the name of an existing file looks like one: by a slash or a suffix.

    Some suffixes, such as .md and .py, are top-level domains too: with two dots or more the text is a host name.
    """
    suffix = Path(text).suffix
    return "/" in text or suffix in _SUFFIXES or (suffix in _AMBIGUOUS_SUFFIXES and text.count(".") == 1)


def was_edited(text: str) -> bool:
    """Whether an inventory that ``from_host_list`` wrote was changed since."""
    head, _, body = text.partition("\n")
    return f"{head}\n" != _HEADER.format(_digest(body))


def difference(existing: str, new: str) -> list[str]:
    """The differences between two inventories, as lines with ``+`` and ``-``; values of secrets are hidden."""
    before, after = (text.partition("\n")[2].splitlines() for text in (existing, new))
    shown = {"-": _without_secrets(before), "+": _without_secrets(after)}
    found = []
    for line in difflib.ndiff(before, after):
        texts = [next(shown[side]) for side in "-+" if line[0] in (side, " ")]
        if line[0] in "+-":
            found.append(f"{line[0]} {texts[0]}")
    return found[:_MAX_LINES]


def _without_secrets(lines: Iterable[str]) -> Iterator[str]:
    """Yield an inventory's lines, each up to the first value that is secret by its name; no line of such a value."""
    column: int | None = None  # of the line with the last secret, whose value may go on below
    for line in lines:
        own = len(line) - len(line.lstrip())
        goes_on = own == column and _GOES_ON.match(line, own)
        if column is not None and (own > column or goes_on or not line.strip()):
            yield line[:own] + (HIDDEN if line.strip() else "")
            continue
        names = _NAME.finditer(line)
        ends = [match.end() for match in names if is_secret(match[1] or match[2], line[match.end() :])]
        column = own if ends else None
        shown = hide_assigned(hide_url_passwords(line[: ends[0]] if ends else line))
        yield f"{shown} {HIDDEN}" if ends else shown


def _digest(body: str) -> str:
    return hashlib.sha256(body.encode()).hexdigest()[:12]


def variables_of(arguments: Iterable[str]) -> dict[str, Any]:
    """Variables from ``NAME=VALUE`` arguments, each as the node of its YAML: ``2`` a number, ``{A: 1}`` a mapping."""
    found = {}
    for argument in arguments:
        name, equals, text = argument.partition("=")
        if not equals or not name or not text:
            raise UsageError(f"-e {argument}: no NAME=VALUE", remedy="write it as -e clusterddp_nproc=2")
        check_name(name, f"-e {argument}")
        if name not in USED:
            raise UsageError(f"-e {argument}: {name} is no variable that clusterddp reads", remedy="leave it out")
        try:
            found[name] = compose(text, f"-e {name}")
            yaml.safe_load(text)  # raises for a tag, or a date that is none
        except UnicodeEncodeError:
            raise UsageError(f"-e {argument}: the value is not UTF-8", remedy="write it in UTF-8") from None
        except (yaml.YAMLError, ValueError):
            raise UsageError(f"-e {argument}: the value is no YAML", remedy="quote it") from None
    return found


def _read_item(item: str) -> tuple[str, dict[str, Any]]:
    """Split ``[user@]host[:port]`` into the host's name and its inventory variables."""
    where = f"host list item {item!r}"
    user, at, rest = item.rpartition("@")
    bare = rest[1:-1] if rest.startswith("[") and rest.endswith("]") and rest.count(":") > 1 else rest
    found = split_port(bare)
    if found is None:
        remedy = RANGE_REMEDY if set("[]") & set(rest) else _REMEDY
        raise InventoryError(f"{rest!r} is not a host name or address", where=where, remedy=remedy)
    name, port = found
    for host in expand(name, where)[0]:
        validate.host_name(host, where)
    variables: dict[str, Any] = {}
    if at:
        variables["ansible_user"] = validate.user_name(user, where)
    if port is not None:
        if not 1 <= port <= 65535:
            raise InventoryError(f"port {port} is not from 1 to 65535", where=where, remedy=_REMEDY)
        if port < LOWEST_PORT:
            whole = f"{user}{at}{name}"
            raise InventoryError(
                f"{rest}: is {port} a number of processes, or a port?",
                where=where,
                remedy=f"for processes write {whole}, and clusterddp_nproc: {port} in the inventory "
                f"(`clusterddp up {shlex.quote(whole)} -e clusterddp_nproc={port}`); "
                f"for a port ansible_port: {port} there",
            )
        variables["ansible_port"] = port
    return name, variables
