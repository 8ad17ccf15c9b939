"""Reads a host's variables into a :class:`HostEntry`, and checks the value of each."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from clusterddp.errors import InventoryError, UsageError
from clusterddp.inventory import env, validate, variable_names
from clusterddp.inventory.launchers import DEFAULT_LAUNCHER, LAUNCHERS
from clusterddp.inventory.reader import VariableReader, refuse_value, whole_number
from clusterddp.inventory.values import DEFAULT_PORTS, WARM, HostEntry
from clusterddp.inventory.yamlfile import plain
from clusterddp.text.units import duration

if TYPE_CHECKING:
    from collections.abc import Sequence

    from clusterddp.inventory.group_vars import Layer
    from clusterddp.inventory.values import Role

ROLES = ("node", "spare", "login", "none")
_SSH = frozenset({"ssh", "smart", "paramiko", "paramiko_ssh"})
_MOST_WORKERS = 1024  # on one host; more must be a typing error
_LOCK = re.compile(r"(?!-)[^\[\]\0]*\.(lock|toml|txt)(\[[\w.-]+(\s*,\s*[\w.-]+)*\])?")
_PACKAGE = re.compile(r"(?=.{1,100}\Z)[A-Za-z0-9_]+([.-][A-Za-z0-9_]+)*")  # name of a module or distribution
_MOST_PACKAGES = 100
_GPU = re.compile(r"[0-9]{1,4}|(?:GPU|MIG)-[\w/-]+")


def host_entry(name: str, where: str, groups: Sequence[str], layers: Sequence[Layer]) -> tuple[HostEntry, list[str]]:
    """Read one host from its variables' layers, weakest first; returns the entry, and notices.

    A host whose role is ``none`` is never touched, so an invalid value there is only a notice. Else it is an
    ``InventoryError``. ``where`` is ``file:line`` of the host's first mention.
    """
    merged = {
        key: setting for layer in layers for key, setting in layer.items() if key not in variable_names.ANSIBLE_OWNS
    }
    reader = VariableReader(merged)
    role = cast("Role", reader.choice("clusterddp_role", ROLES) or "node")
    common: dict[str, Any] = {
        "name": name,
        "groups": tuple(sorted(groups)),
        "vars": {key: plain(setting.value) for key, setting in merged.items()},
        "role": role,
        "where": where,
    }
    try:
        read = {**_connection(name, reader), **_job(reader), **env.read_env(layers), "slurm": _slurm(reader)}
    except InventoryError as error:
        if role != "none":
            raise
        return HostEntry(address=name, **common), [f"{error} (passed over: {name} has the role none)"]
    return HostEntry(**common, **read), _not_read(merged)


def _not_read(merged: Layer) -> list[str]:
    said = [
        f"{setting.where}: no variable of Ansible's, so it does nothing here; did you mean {meant}?"
        for name, setting in merged.items()
        if (meant := variable_names.misspelled(name))
    ]
    unread = merged.get(variable_names.NOT_READ)
    if unread is not None:
        said.append(f"{unread.where}: not read; what the connection needs belongs into {variable_names.COMMON_ARGS[0]}")
    return said


def _connection(name: str, reader: VariableReader) -> dict[str, Any]:
    return {
        "address": _address(reader, *variable_names.HOST) or name,
        "port": reader.number(*variable_names.PORT, least=1, most=65535, expected="a port from 1 to 65535"),
        "user": _user(reader),
        "connection": _connection_kind(reader),
        "identity_file": _identity(reader),
        "ssh_args": reader.arguments(*variable_names.COMMON_ARGS) + reader.arguments(variable_names.EXTRA_ARGS),
        "ansible_python": _ansible_python(reader),
        "transport": reader.choice("clusterddp_transport", ("auto", "fabric", "openssh")) or "auto",
        "state": _folder(reader, "clusterddp_state"),
    }


def _job(reader: VariableReader) -> dict[str, Any]:
    return {
        "setup": _setup(reader),
        "python": _python(reader),
        "nproc": _nproc(reader),
        "environment": _environment(reader),
        "gpus": _gpus(reader),
        "data_address": _address(reader, "clusterddp_address"),
        "interface": _interface(reader),
        "ports": _ports(reader),
        "workdir": _folder(reader, "clusterddp_workdir"),
        "fork_server": _flag(reader, "clusterddp_fork_server", default=True),
        "warm": _warm(reader),
        "preload": _preload(reader),
        "links": _links(reader),
        "carry": _carry(reader),
        "launcher": reader.choice("clusterddp_launcher", tuple(LAUNCHERS)) or DEFAULT_LAUNCHER,
    }


def _address(reader: VariableReader, *aliases: str) -> str | None:
    setting = reader.get(*aliases)
    return None if setting is None else validate.address(setting.value, setting.where)


def _user(reader: VariableReader) -> str | None:
    setting = reader.get(*variable_names.USER)
    if setting is None:
        return None
    value = setting.text if isinstance(setting.value, int) else setting.value
    return validate.user_name(value, setting.where)


def _connection_kind(reader: VariableReader) -> str:
    setting = reader.get(variable_names.CONNECTION)
    if setting is None:
        return "ssh"
    kind = str(setting.value).removeprefix("ansible.builtin.")
    if kind not in _SSH | {"local"}:
        refuse_value(setting, "ssh or local", "give hosts that are reached otherwise 'clusterddp_role: none'")
    return "local" if kind == "local" else "ssh"


def _identity(reader: VariableReader) -> Path | None:
    text, setting = reader.line(*variable_names.KEY_FILE), reader.get(*variable_names.KEY_FILE)
    if text is None or setting is None:
        return None
    try:
        return Path(text).expanduser()
    except RuntimeError:
        refuse_value(setting, "a path (that home folder is not known)", "write the path in full")


def _ansible_python(reader: VariableReader) -> str | None:
    text, setting = reader.line(variable_names.PYTHON), reader.get(variable_names.PYTHON)
    if text is None or setting is None or text.startswith("auto"):  # auto, auto_silent, auto_legacy: look for one
        return None
    return _program(text, setting.where)


def _python(reader: VariableReader) -> str | None:
    name = "clusterddp_python"
    text, setting = reader.line(name), reader.get(name)
    return None if text is None or setting is None else _program(text, setting.where)


def _program(text: str, where: str) -> str:
    validate.no_container(text, where)
    with_arguments = re.search(r"\s", text) and not text.startswith(("/", "~"))
    if text.startswith("-") or with_arguments or re.search(r"\s-|env\s", text):
        remedy = "give the interpreter's path alone; what must run before it belongs into clusterddp_setup"
        raise InventoryError(f"must be one program, got {text!r}", where=where, remedy=remedy)
    return text


def _setup(reader: VariableReader) -> tuple[str, ...]:
    lines, setting = reader.shell_lines("clusterddp_setup"), reader.get("clusterddp_setup")
    for line in lines if setting else ():
        validate.no_container(line, setting.where if setting else "")
    return lines


def _nproc(reader: VariableReader) -> int | None:
    setting = reader.get("clusterddp_nproc")
    if setting is None or setting.value == "auto":
        return None
    expected = f"auto or a number from 1 to {_MOST_WORKERS}"
    return reader.number("clusterddp_nproc", least=1, most=_MOST_WORKERS, expected=expected)


def _environment(reader: VariableReader) -> str | None:
    name = "clusterddp_environment"
    text, setting = reader.line(name), reader.get(name)
    if text is None or setting is None:
        return None
    if not _LOCK.fullmatch(text):
        refuse_value(setting, "a lock file, with extras in brackets", "write uv.lock, uv.lock[gpu] or requirements.txt")
    return text


def _gpus(reader: VariableReader) -> int | tuple[str, ...] | None:
    setting = reader.get("clusterddp_gpus")
    if setting is None or setting.value == "all":
        return None
    count = whole_number(setting.value)
    if count is not None and count >= 0:
        return count
    listed = setting.value.split(",") if isinstance(setting.value, str) else setting.value
    items = [str(item).strip() for item in listed] if isinstance(listed, list) else []
    if not items or len(set(items)) < len(items) or not all(_GPU.fullmatch(item) for item in items):
        refuse_value(setting, "a count, or a list of different indices or UUIDs", "write 4, [0, 2] or [GPU-…]")
    return tuple(items)


def _interface(reader: VariableReader) -> str | None:
    setting = reader.get("clusterddp_interface")
    if setting is None:
        return None
    if not isinstance(setting.value, str) or not re.fullmatch(r"[\w.:@][\w.:@-]{0,14}", setting.value):
        refuse_value(setting, "a network interface's name", "take it from 'ip -br link' on the host")
    return setting.value


def _ports(reader: VariableReader) -> tuple[int, int]:
    setting = reader.get("clusterddp_ports")
    if setting is None:
        return DEFAULT_PORTS
    parts = setting.value.split("-") if isinstance(setting.value, str) else setting.value
    ports = (
        [whole_number(part.strip() if isinstance(part, str) else part) for part in parts]
        if isinstance(parts, list)
        else []
    )
    first, last = (ports[0] or 0, ports[1] or 0) if len(ports) == 2 else (0, 0)
    if not 1 <= first <= last <= 65535:
        refuse_value(setting, "a first and a last port", "write 29400-29499 or [29400, 29499]")
    return first, last


def _warm(reader: VariableReader) -> float:
    setting = reader.get("clusterddp_warm")
    if setting is None:  # nothing is left running on the operator's own machine
        return 0.0 if _connection_kind(reader) == "local" else WARM
    try:
        return duration(setting.value)
    except UsageError:
        refuse_value(setting, "a duration", "write it as 90s, 15m or 2h; 0 for none")


def _preload(reader: VariableReader) -> tuple[str, ...]:
    setting = reader.get("clusterddp_preload")
    if setting is None:
        return ()
    found = plain(setting.value)
    if not isinstance(found, list) or not all(isinstance(name, str) and _PACKAGE.fullmatch(name) for name in found):
        refuse_value(setting, "a list of modules or distributions", "write [transformers, scikit-learn]")
    if len(found) > _MOST_PACKAGES:
        refuse_value(setting, f"a list of at most {_MOST_PACKAGES} names", "name those that your scripts import")
    return tuple(dict.fromkeys(found))


def _flag(reader: VariableReader, name: str, *, default: bool) -> bool:
    setting = reader.get(name)
    if setting is None:
        return default
    if not isinstance(setting.value, bool):
        refuse_value(setting, "true or false", "write one of them without quotes")
    return setting.value


def _folder(reader: VariableReader, name: str) -> str | None:
    text, setting = reader.line(name), reader.get(name)
    if text is None or setting is None:
        return None
    plain = text.rstrip("/")
    if not text.startswith(("/", "~/")) or plain in {"", "~"} or "$" in text or ".." in text.split("/"):
        refuse_value(setting, "a folder below / or ~/, without $ and ..", "write it as /scratch/me/run or ~/run")
    return plain


def _links(reader: VariableReader) -> dict[str, str]:
    setting = reader.get("clusterddp_links")
    if setting is None:
        return {}
    found = plain(setting.value)
    if not isinstance(found, dict) or not all(_is_link(name, target) for name, target in found.items()):
        expected = "a mapping of names below the workdir to paths below / or ~/, both without $ and .."
        refuse_value(setting, expected, "write 'data: /scratch/me/data' below it")
    return {str(name): str(target) for name, target in found.items()}


def _is_link(name: object, target: object) -> bool:
    if not isinstance(name, str) or not isinstance(target, str) or "$" in target or "\0" in name + target:
        return False
    return _is_inside(name) and target.startswith(("/", "~/")) and ".." not in target.split("/")


def _carry(reader: VariableReader) -> tuple[str, ...]:
    setting = reader.get("clusterddp_carry")
    if setting is None:
        return ()
    found = plain(setting.value)
    if not isinstance(found, list) or not all(isinstance(path, str) and _is_inside(path) for path in found):
        refuse_value(setting, "a list of paths below the workdir", "write [checkpoints/last]")
    return tuple(dict.fromkeys(found))


def _is_inside(path: str) -> bool:
    """Whether a path is below the workdir, and not one of our own files there."""
    parts = path.split("/")
    return not {"", ".", ".."}.intersection(parts) and not parts[0].startswith(".clusterddp") and "\0" not in path


def _slurm(reader: VariableReader) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key in variable_names.SLURM_OPTIONS:
        name = f"{variable_names.PREFIX}slurm_{key}"
        setting = reader.get(name)
        if setting is not None:
            found[key] = setting.text if isinstance(setting.value, int) else reader.line(name)
    lines = reader.shell_lines(f"{variable_names.PREFIX}slurm_lines")
    shared = f"{variable_names.PREFIX}slurm_shared"
    if reader.get(shared) is not None:
        found["shared"] = _flag(reader, shared, default=False)
    return {**found, "lines": lines} if lines else found
