"""``clusterddp init``: write a commented inventory from names, an ssh_config, or another launcher's host file."""

from __future__ import annotations

import os
import shlex
import sys
from pathlib import Path

from clusterddp.cli.option_checks import check_writable
from clusterddp.cli.output import say, write_file
from clusterddp.errors import InventoryError, UsageError
from clusterddp.inventory.hostlist import means_file
from clusterddp.inventory.load import YAML_SUFFIXES, is_inventory
from clusterddp.inventory.origins import hosts_of, hosts_of_list, inventory_text
from clusterddp.inventory.ssh_config import is_ssh_config, unconverted_keywords
from clusterddp.project.user_folders import user_path
from clusterddp.text.paths import shown

_SSH_CONFIG = Path("~/.ssh/config")
_SYSTEM_SSH_CONFIG = Path("/etc/ssh/ssh_config")
_SLURM_VARIABLES = ("SLURM_JOB_NODELIST", "SLURM_NODELIST")


def act(origin: str | None, output: str) -> int:
    """Write the inventory; return the exit code."""
    path = Path(output)
    if output != "-":
        _check_output(path)
    hosts, where = _read_hosts(origin)
    try:
        text = inventory_text(hosts, origin=shown(where), name=shown(output) if output != "-" else "inventory.yaml")
    except InventoryError as error:
        raise InventoryError(error.message, where=where, remedy=error.remedy) from None
    if output == "-":
        sys.stdout.write(text)
        return 0
    write_file(path, text)
    say(f"wrote {output} from {where}; look at it, then `clusterddp up {shlex.quote(output)}`")
    return 0


def _check_output(path: Path) -> None:
    """Refuse a file that is there, that cannot be written, or that `up` would not take; raises UsageError."""
    if path.exists():
        raise UsageError(f"{path} is there already", remedy="name another: --output FILE")
    if path.suffix not in YAML_SUFFIXES:
        raise UsageError(f"{path}: {path.suffix} is no suffix of YAML", remedy=f"name it {path.with_suffix('.yaml')}")
    check_writable(str(path))


def _read_hosts(origin: str | None) -> tuple[dict[str, dict[str, object]], str]:
    """Return the hosts of ``origin`` (a list or a file; None: Slurm's variables, else ~/.ssh/config), and its name."""
    if origin is None:
        name = next((name for name in _SLURM_VARIABLES if os.environ.get(name)), "")
        if name:
            return hosts_of(os.environ[name]), name
        if not _SSH_CONFIG.expanduser().is_file():
            remedy = "give host names, a host file, or an ssh_config: `clusterddp init gpu01,gpu02`"
            raise InventoryError("there is no ~/.ssh/config to take hosts from", remedy=remedy)
        origin = str(_SSH_CONFIG)
    path = user_path(origin)
    if not os.path.isfile(path):  # noqa: PTH113 - Path's raises where a host list is longer than a name may be
        is_folder = origin and os.path.isdir(path)  # noqa: PTH112 - the same
        if is_folder or means_file(origin):
            problem = "is a folder" if is_folder else "there is no such file"
            raise InventoryError(problem, where=origin, remedy="give a file, or hosts as a,b,c")
        return hosts_of_list(origin), "a host list"
    if is_inventory(path):
        remedy = f"`clusterddp up {shlex.quote(origin)}` takes it as it is"
        raise InventoryError("is an inventory already", where=origin, remedy=remedy)
    try:
        text = path.read_text(encoding="utf-8-sig")
        in_effect = path.resolve() in {_SSH_CONFIG.expanduser().resolve(), _SYSTEM_SSH_CONFIG.resolve()}
        _say_what_is_left_out(text, origin, in_effect=in_effect)
        hosts = hosts_of(text, in_effect=in_effect)
    except UnicodeDecodeError:
        raise InventoryError("is no text", where=origin, remedy="give a host file") from None
    except InventoryError as error:
        raise InventoryError(error.message, where=origin, remedy=error.remedy) from None
    return hosts, origin


def _say_what_is_left_out(text: str, origin: str, *, in_effect: bool) -> None:
    """Print which settings of an ssh_config the inventory will lack; ``in_effect``: ssh applies that file itself."""
    left_out = unconverted_keywords(text, in_effect=in_effect) if in_effect or is_ssh_config(text) else []
    dropped = [keyword for keyword in left_out if keyword.lower() != "include"]
    if len(dropped) < len(left_out):
        say(f"{origin}: the files of its Include are not read; hosts that stand there are left out")
    if dropped and not in_effect:
        say(f"{origin}: {', '.join(dropped)} not kept; write what the hosts need into ansible_ssh_common_args")
