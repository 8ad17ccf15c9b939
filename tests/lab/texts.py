"""What the operator needs to reach a lab: inventory, ssh configuration, known_hosts, as texts."""

from __future__ import annotations

import shutil
import subprocess
import sys
from typing import TYPE_CHECKING, Literal

import yaml

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from pathlib import Path

    from tests.lab.host import LabHost

Proxy = Literal["jump", "command", "config", "none"]


def known_hosts(hosts: Iterable[LabHost]) -> str:
    """A line for each host, under its name and its first address."""
    return "".join(f"{host.name},{host.address} {host.public_key}\n" for host in hosts)


def ssh_config(hosts: Iterable[LabHost], folder: Path, bastion: LabHost | None) -> str:
    """A configuration for `ssh -F` in which every host is known by its name."""
    text = ""
    for host in hosts:
        text += f"Host {host.name} {host.address}\n    HostName {host.address}\n"
        if bastion and host is not bastion:
            text += f"    ProxyJump {bastion.name}\n"
    user = next(iter(hosts)).users[0].name
    return text + (
        f"Host *\n    User {user}\n    IdentityFile {folder}/id_ed25519\n    IdentitiesOnly yes\n"
        f"    UserKnownHostsFile {folder}/known_hosts\n    GlobalKnownHostsFile /dev/null\n"
        "    StrictHostKeyChecking yes\n    BatchMode yes\n    ConnectTimeout 10\n"
    )


def inventory(
    hosts: Sequence[LabHost],
    folder: Path,
    *,
    ssh_args: str,
    twice: Sequence[str],
    more: Mapping[str, Mapping[str, object]],
) -> str:
    """The inventory as YAML; `ssh_arguments` makes ``ssh_args``, `Lab.inventory_text` explains the rest."""
    entries: dict[str, dict[str, object]] = {}
    for host in hosts:
        shared = {"ansible_host": host.address, **host.options.vars}
        entries[host.name] = {**shared, **more.get(host.name, {})}
        if host.name in twice:
            second = f"{host.name}b"
            entries[second] = {**shared, **more.get(second, {})}
    common = {
        "ansible_user": hosts[0].users[0].name,
        "ansible_ssh_private_key_file": f"{folder}/id_ed25519",
        "ansible_ssh_common_args": ssh_args,
        **_host_python(),
        **more.get("all", {}),
    }
    return yaml.safe_dump({"all": {"vars": common, "hosts": entries}}, sort_keys=False, width=1000)


def ssh_arguments(folder: Path, bastion: LabHost | None, proxy: Proxy, connect_timeout: int | None) -> str:
    """The ssh options of all hosts in the inventory: known hosts, time limit, and the way through a bastion."""
    known = f"-o UserKnownHostsFile={folder}/known_hosts"
    if connect_timeout is not None:
        known += f" -o ConnectTimeout={connect_timeout}"
    if bastion is None or proxy == "none":
        return known
    login = f"{bastion.users[0].name}@{bastion.address}"
    ways = {
        "jump": f"{known} -o ProxyJump={login}",
        "command": f'{known} -o "ProxyCommand=ssh -F none -i {folder}/id_ed25519 {known} -W %h:%p {login}"',
        "config": f"-F {folder}/ssh_config",
    }
    return ways[proxy]


def _host_python() -> dict[str, object]:
    """Nothing where a remote command finds a python3 of 3.8 or later; else the operator's interpreter."""
    found = shutil.which("python3", path="/usr/local/bin:/usr/bin:/bin")
    check = "import sys; sys.exit(sys.version_info < (3, 8))"
    if found and subprocess.run([found, "-I", "-c", check], check=False).returncode == 0:
        return {}
    return {"ansible_python_interpreter": sys.executable}
