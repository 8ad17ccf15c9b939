"""Validates names, addresses and shell lines of an inventory."""

from __future__ import annotations

import re

from clusterddp.errors import InventoryError

# We cannot find a container's processes, so a stop could not prove that they have ended.
_PROGRAMS = "docker|podman|nerdctl|apptainer|singularity|enroot"
_START_VERBS = "run|exec|start|shell|instance|create|up"
_CONTAINER = re.compile(
    rf"(?:^|[^\w.-])(?P<program>{_PROGRAMS})(?P<middle>(?:\s+[^\s;&|#]+)*?)\s+(?P<verb>{_START_VERBS})(?![\w./:=-])"
)
_MAX_NAME_BYTES = 200  # file systems allow 255 bytes, and a spool's folder name also has the node's rank


def host_name(name: object, where: str) -> str:
    """Check a host's name: printable, no space, fit to be a folder's name and an argument."""
    text = _check_word(name, "host name", where)
    if "/" in text or "\\" in text or ".." in text or text == ".":
        remedy = "name the host plainly and put its address into ansible_host"
        raise InventoryError(f"host name {text!r} is not fit to be a folder's name", where=where, remedy=remedy)
    if len(text.encode()) > _MAX_NAME_BYTES:
        raise InventoryError(f"host name {text[:20]!r}… is longer than {_MAX_NAME_BYTES} bytes", where=where)
    return text


def group_name(name: object, where: str) -> str:
    """Check a group's name: text, not empty, no control characters."""
    if not isinstance(name, str):
        raise InventoryError(f"group name {name!r} is not text", where=where, remedy="quote it")
    if not name or not name.isprintable() or "/" in name:
        raise InventoryError(f"group name {name!r} is not usable", where=where, remedy="use letters, digits and _")
    return name


def user_name(name: object, where: str) -> str:
    """Check a login name."""
    return _check_word(name, "user", where)


def address(value: object, where: str) -> str:
    """Check a host name or numeric address to connect to."""
    text = _check_word(value, "address", where)
    if re.search(r"[@/\[\]]", text):
        raise InventoryError(
            f"address {text!r} is not a host name or IP address",
            where=where,
            remedy="put the user into ansible_user and the port into ansible_port",
        )
    return text


def _check_word(value: object, kind: str, where: str) -> str:
    """Check one printable word that is no option; ``kind`` is what errors call it."""
    if not isinstance(value, str):
        raise InventoryError(f"{kind} {value!r} is not text", where=where, remedy="quote it")
    if not value:
        raise InventoryError(f"the {kind} is empty", where=where, remedy="give it, or remove the key")
    if value.startswith("-"):
        remedy = "a leading - would be read as an option"
        raise InventoryError(f"{kind} {value!r} begins with -", where=where, remedy=remedy)
    if not value.isprintable() or any(character.isspace() for character in value):
        raise InventoryError(f"{kind} {value!r} holds a space or a control character", where=where, remedy="remove it")
    return value


def refuse_container(line: str, where: str) -> None:
    """Refuse a shell line or an interpreter that starts a container."""
    if line.lstrip().startswith("#"):
        return
    found = _CONTAINER.search(line)
    program = line.rsplit("/", 1)[-1].strip()
    if found or program in _PROGRAMS.split("|"):
        shown = f"{found['program']} {found['verb']}" if found else program
        raise InventoryError(
            f"{shown!r} starts a container, whose processes would escape the proof that a run has ended",
            where=where,
            remedy="run sshd in the container and give it as a host of its own",
        )
