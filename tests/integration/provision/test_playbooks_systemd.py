"""What playbooks do where systemd runs: a lab host booted by systemd-nspawn; by `make test-playbooks` alone."""

from __future__ import annotations

import contextlib
import shutil
import subprocess
from typing import TYPE_CHECKING

import pytest

from tests.integration.provision.test_playbooks import AS_ROOT, changed, user, whole, with_root
from tests.lab import network
from tests.lab.system import inside_network, ssh_banner, wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.conftest import MakeLab
    from tests.integration.cli import User
    from tests.lab import Lab
    from tests.lab.host import LabHost

__all__ = ["user"]
TIME_SERVICE = "[Service]\nExecStart=sleep inf\n[Install]\nWantedBy=multi-user.target\n"
pytestmark = [
    whole,
    pytest.mark.skipif(not shutil.which("systemd-nspawn"), reason="systemd-nspawn is not installed"),
]


@contextlib.contextmanager
def booted_by_systemd(lab: Lab, host: LabHost) -> Iterator[None]:
    """The host with systemd as its PID 1, in place of its sshd; off at the end."""
    host.power_off()
    # A stand-in for a time service, which cannot be installed without a network.
    host.disk.write("/etc/systemd/system/chronyd.service", TIME_SERVICE)
    network.plug_in(lab.number, host.name, host.nics)
    root = host.folder / "root"
    layers = f"index=off,lowerdir=/,upperdir={host.folder}/upper,workdir={host.folder}/work"
    subprocess.run(["mount", "-t", "overlay", "overlay", "-o", layers, str(root)], check=True)
    place = [f"--network-namespace-path=/run/netns/{host.namespace}", f"--directory={root}"]
    own = [
        "--register=no",
        "--keep-unit",
        "--boot",
        "--quiet",
        "--capability=CAP_NET_ADMIN",
        "--console=pipe",
        f"--machine={host.name}",
    ]
    nothing = subprocess.DEVNULL
    with subprocess.Popen(["systemd-nspawn", *own, *place], stdin=nothing, stdout=nothing, stderr=nothing) as machine:
        try:
            wait_until("systemd has started sshd", lambda: _answers(lab, host), timeout=60)
            yield
        finally:
            machine.kill()
            machine.wait()
            subprocess.run(["umount", "-l", str(root)], check=True)


def _answers(lab: Lab, host: LabHost) -> bool:
    with contextlib.suppress(OSError):
        return inside_network(network.namespace(lab.number, lab.hosts[0].name), lambda: ssh_banner(host.address)) != ""
    return False


def test_time_linger_and_the_firewall_are_kept_where_systemd_runs(make_lab: MakeLab, user: User) -> None:
    lab = with_root(make_lab(2))
    host = lab.hosts[1]
    inventory = lab.write_inventory(hosts=[host.name])
    with booted_by_systemd(lab, host):
        found = subprocess.run(["ssh-keyscan", host.address], capture_output=True, text=True, check=True)
        (lab.folder / "known_hosts").write_text(found.stdout)

        def ask(*words: str) -> str:
            key = ["-i", str(lab.folder / "id_ed25519"), "-o", f"UserKnownHostsFile={lab.folder}/known_hosts"]
            argv = ["ssh", "-F", "none", *key, f"root@{host.address}", *words]
            return subprocess.run(argv, capture_output=True, text=True, check=False).stdout.strip()

        for playbook in ("hosts.yml", "firewall.yml"):
            done = user.run("up", str(inventory), "--playbook", playbook, "--", *AS_ROOT)
            assert done.code == 0, done.out
        assert ask("loginctl", "show-user", "trainer", "--property=Linger") == "Linger=yes"
        assert ask("systemctl", "is-active", "chronyd") == "active"
        assert ask("systemctl", "is-enabled", "clusterddp-firewall") == "enabled"
        assert ask("nft list table inet clusterddp | grep -c drop") == "2"
        for playbook in ("hosts.yml", "firewall.yml"):
            assert changed(user.run("up", str(inventory), "--playbook", playbook, "--", *AS_ROOT))[host.name] == 0
