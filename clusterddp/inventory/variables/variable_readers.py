"""How the value of each variable is read: a function from its setting to the value that a ``HostEntry`` has."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from clusterddp.errors import InventoryError, UsageError
from clusterddp.inventory import validate
from clusterddp.inventory.ansible_names import COMMON_ARGS, EXTRA_ARGS
from clusterddp.inventory.launchers import LAUNCHERS
from clusterddp.inventory.variables.declare import PREFIX
from clusterddp.inventory.variables.reader import (
    arguments,
    choice,
    line,
    number,
    refuse_value,
    shell_lines,
)
from clusterddp.inventory.yaml_values import plain
from clusterddp.remote.shared.run.run_settings import MIN_STALL
from clusterddp.text.units import duration, whole_number

if TYPE_CHECKING:
    from collections.abc import Callable

    from clusterddp.inventory.variables.reader import VariableReader
    from clusterddp.inventory.yaml_values import Setting

_SSH = frozenset({"ssh", "smart", "paramiko", "paramiko_ssh"})
_MAX_WORKERS = 1024  # on one host; more must be a typing error
_LOCK_FILE = re.compile(r"(?!-)[^\[\]\0]*\.(lock|toml|txt)(\[[\w.-]+(\s*,\s*[\w.-]+)*\])?")
_PACKAGE = re.compile(r"(?=.{1,100}\Z)[A-Za-z0-9_]+([.-][A-Za-z0-9_]+)*")  # name of a module or distribution
_MAX_PACKAGES = 100
_GPU = re.compile(r"[0-9]{1,4}|(?:GPU|MIG)-[\w/-]+")
_FLAGS = {"true": True, "yes": True, "on": True, "false": False, "no": False, "off": False}

# Options of sbatch, with _ instead of -.
SLURM_OPTIONS = (
    "partition", "account", "qos", "constraint", "time", "mem", "cpus_per_task", "gpus_per_node",
)  # fmt: skip
SLURM = {name: f"{PREFIX}slurm_{name}" for name in (*SLURM_OPTIONS, "lines", "shared")}


def address(setting: Setting) -> str:
    """A host name or an IP address."""
    return validate.address(setting.value, setting.where)


def user(setting: Setting) -> str:
    """A login name."""
    value = setting.text if isinstance(setting.value, int) else setting.value
    return validate.user_name(value, setting.where)


def connection(setting: Setting) -> Any:
    """``ssh`` or ``local``; any of Ansible's SSH plugins is ``ssh``."""
    kind = str(setting.value).removeprefix("ansible.builtin.")
    if kind not in _SSH | {"local"}:
        refuse_value(setting, "ssh or local", "give hosts that are reached otherwise 'clusterddp_role: none'")
    return "local" if kind == "local" else "ssh"


def identity_file(setting: Setting) -> Path:
    """A private key, ``~`` expanded."""
    try:
        return Path(line(setting)).expanduser()
    except RuntimeError:
        refuse_value(setting, "a path (that home folder is not known)", "write the path in full")


def ansible_python(setting: Setting) -> str | None:
    """An interpreter; None for Ansible's ``auto``."""
    text = line(setting)
    if text.startswith("auto"):  # auto, auto_silent, auto_legacy: look for one
        return None
    return _program(text, setting.where)


def python(setting: Setting) -> str:
    """An interpreter, without arguments."""
    return _program(line(setting), setting.where)


def port(setting: Setting) -> int:
    """A port."""
    return number(setting, least=1, most=65535, expected="a port from 1 to 65535")


def ssh_args(reader: VariableReader) -> tuple[str, ...]:
    """Arguments of ``ssh``: the common ones, then the extra ones, split as a shell would."""
    settings = (reader.get(*COMMON_ARGS), reader.get(EXTRA_ARGS))
    return tuple(word for setting in settings if setting for word in arguments(setting))


def launcher(setting: Setting) -> str:
    """The name of a launcher."""
    return str(choice(*LAUNCHERS)(setting))


def _program(text: str, where: str) -> str:
    """Read one program's name, or its path, in which blanks may occur; containers and arguments are refused."""
    validate.refuse_container(text, where)
    with_arguments = re.search(r"\s", text) and not text.startswith(("/", "~"))
    if text.startswith("-") or with_arguments or re.search(r"\s-|env\s", text):
        remedy = "give the interpreter's path alone; what must run before it belongs in clusterddp_setup"
        raise InventoryError(f"must be one program, got {text!r}", where=where, remedy=remedy)
    return text


def setup(setting: Setting) -> tuple[str, ...]:
    """Shell lines, none of which starts a container."""
    lines = shell_lines(setting)
    for text in lines:
        validate.refuse_container(text, setting.where)
    return lines


def nproc(setting: Setting) -> int | None:
    """A number of workers; None for ``auto``."""
    if setting.value == "auto":
        return None
    expected = f"auto or a number from 1 to {_MAX_WORKERS}"
    return number(setting, least=1, most=_MAX_WORKERS, expected=expected)


def environment(setting: Setting) -> str:
    """A lock file, with extras in brackets."""
    text = line(setting)
    if not _LOCK_FILE.fullmatch(text):
        refuse_value(setting, "a lock file, with extras in brackets", "write uv.lock, uv.lock[gpu] or requirements.txt")
    return text


def gpus(setting: Setting) -> int | tuple[str, ...] | None:
    """A number of GPUs, or indices or UUIDs; None for ``all``."""
    if setting.value == "all":
        return None
    count = whole_number(setting.value)
    if count is not None and count >= 0:
        return count
    listed = setting.value.split(",") if isinstance(setting.value, str) else setting.value
    items = [str(item).strip() for item in listed] if isinstance(listed, list) else []
    if not items or len(set(items)) < len(items) or not all(_GPU.fullmatch(item) for item in items):
        refuse_value(setting, "a count, or a list of different indices or UUIDs", "write 4, [0, 2] or [GPU-…]")
    return tuple(items)


def interface(setting: Setting) -> str:
    """The name of a network interface."""
    if not isinstance(setting.value, str) or not re.fullmatch(r"[\w.:@][\w.:@-]{0,14}", setting.value):
        refuse_value(setting, "a network interface's name", "take it from 'ip -br link' on the host")
    return setting.value


def ports(setting: Setting) -> tuple[int, int]:
    """A first and a last port."""
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


def warm(setting: Setting) -> float:
    """How many seconds a warm server waits for the next run; 0 for no warm server."""
    try:
        return duration(setting.value)
    except UsageError:
        refuse_value(setting, "a duration", "write it as 90s, 15m or 2h; 0 for none")


def stall(setting: Setting) -> float:
    """How many seconds a run may hang; 0 for no stall guard."""
    try:
        seconds = duration(setting.value)
    except UsageError:
        seconds = -1.0
    if seconds and seconds < MIN_STALL:
        refuse_value(setting, f"a duration of at least {MIN_STALL:g} s", "write it as 10m or 1h; 0 for no stall guard")
    return seconds


def preload(setting: Setting) -> tuple[str, ...]:
    """Names of modules or distributions."""
    found = plain(setting.value)
    if not isinstance(found, list) or not all(isinstance(name, str) and _PACKAGE.fullmatch(name) for name in found):
        refuse_value(setting, "a list of modules or distributions", "write ['transformers', 'scikit-learn']")
    if len(found) > _MAX_PACKAGES:
        refuse_value(setting, f"a list of at most {_MAX_PACKAGES} names", "name those that your scripts import")
    return tuple(dict.fromkeys(found))


def flag(setting: Setting) -> bool:
    """Read true or false, also as a text: Ansible reads those of an INI file so."""
    if isinstance(setting.value, bool):
        return setting.value
    found = _FLAGS.get(setting.value.lower()) if isinstance(setting.value, str) else None
    if found is None:
        refuse_value(setting, "true or false", "write one of them")
    return found


def folder(setting: Setting) -> str:
    """A folder in the root folder or in the home."""
    text = line(setting)
    plain = text.rstrip("/")
    if not text.startswith(("/", "~/")) or plain in {"", "~"} or "$" in text or ".." in text.split("/"):
        refuse_value(setting, "a folder below / or ~/, without $ and ..", "write it as /scratch/me/run or ~/run")
    return plain


def links(setting: Setting) -> dict[str, str]:
    """Paths below the workdir, with the target of each."""
    found = plain(setting.value)
    if not isinstance(found, dict) or not all(_is_link(name, target) for name, target in found.items()):
        expected = "a mapping of names below the workdir to paths below / or ~/, both without $ and .."
        refuse_value(setting, expected, "write 'data: /scratch/me/data' below it")
    return {str(name): str(target) for name, target in found.items()}


def _is_link(name: object, target: object) -> bool:
    if not isinstance(name, str) or not isinstance(target, str) or "$" in target or "\0" in name + target:
        return False
    return _is_inside(name) and target.startswith(("/", "~/")) and ".." not in target.split("/")


def carry(setting: Setting) -> tuple[str, ...]:
    """Paths below the workdir that a host which replaces another gets from the others."""
    found = plain(setting.value)
    if not isinstance(found, list) or not all(isinstance(path, str) and _is_inside(path) for path in found):
        refuse_value(setting, "a list of paths below the workdir", "write ['checkpoints/last']")
    return tuple(dict.fromkeys(found))


def _is_inside(path: str) -> bool:
    """Whether a path is below the workdir, and not one of our own files there."""
    parts = path.split("/")
    return not {"", ".", ".."}.intersection(parts) and not parts[0].startswith(".clusterddp") and "\0" not in path


def slurm(reader: VariableReader) -> dict[str, Any]:
    """``clusterddp_slurm_*``: a text for each option of sbatch; ``lines``; ``shared``. Only what is set."""
    found: dict[str, Any] = {}
    for key, name in SLURM.items():
        setting = reader.get(name)
        if setting is not None:
            found[key] = _SLURM_READERS.get(key, _sbatch_option)(setting)
    return {key: value for key, value in found.items() if value != ()}  # no lines are none


def _sbatch_option(setting: Setting) -> str | None:
    """An option's value; a number as it is written."""
    return setting.text if isinstance(setting.value, int) else line(setting)


_SLURM_READERS: dict[str, Callable[[Setting], Any]] = {"lines": shell_lines, "shared": flag}
