"""The playbooks that come with clusterddp, run by the real ansible-playbook on real hosts, with root's key.

Short ones run always; `make test-playbooks` (CLUSTERDDP_PLAYBOOKS=1) runs all, with the firewall's whole minute.
"""

from __future__ import annotations

import os
import re
import resource
import secrets
import shlex
import shutil
import socket
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from clusterddp.provision.playbooks import NAMES, find_playbook
from tests.integration.cli import User
from tests.lab.system import inside_network, wait_until
from tests.remedies import remedy

if TYPE_CHECKING:
    from tests.conftest import MakeLab
    from tests.integration.cli import Done
    from tests.lab import Lab
    from tests.lab.host import LabHost

BIN = Path(sys.executable).parent
ALL = bool(os.environ.get("CLUSTERDDP_PLAYBOOKS"))
AS_ROOT = ("-u", "root", "-e", "ansible_python_interpreter=/usr/bin/python3")
PORT = 29412
pytestmark = pytest.mark.skipif(not (BIN / "ansible-playbook").exists(), reason="ansible-core is not installed")
whole = pytest.mark.skipif(not ALL, reason="by `make test-playbooks`")


@pytest.fixture
def user(tmp_path: Path) -> User:
    made = User(tmp_path)
    made.limit = 600.0  # a playbook's fifteen tasks take two minutes on a busy machine
    made.env["ANSIBLE_PIPELINING"] = "1"
    made.env["ANSIBLE_NOCOLOR"] = "1"
    made.env["ANSIBLE_SSH_CONTROL_PATH_DIR"] = (
        f"/tmp/cp-{secrets.token_hex(4)}"  # labs of other tests had the same addresses
    )
    return made


def with_root(lab: Lab) -> Lab:
    """Let the operator's key in as root."""
    lab.let_root_in()
    return lab


def changed(done: Done) -> dict[str, int]:
    """How many tasks have changed something on each host, by the last recap."""
    assert done.code == 0, done.out + done.err
    recap = done.out.rpartition("PLAY RECAP")[2]
    found = dict(re.findall(r"^(\S+)\s+: ok=\d+\s+changed=(\d+) .* failed=0 ", recap, re.MULTILINE))
    return {host: int(count) for host, count in found.items()}


def shm(host: LabHost) -> int:
    return int(host.run(["df", "--block-size=1", "--output=size", "/dev/shm"]).stdout.split()[-1])


def shrink_shm(host: LabHost) -> None:
    host.run(["mount", "-o", "remount,size=64m", "/dev/shm"], user="root")


def test_hosts_are_prepared_before_up_looks_at_them_and_a_second_time_changes_nothing(
    make_lab: MakeLab, user: User
) -> None:
    lab = with_root(make_lab(2))
    first, second = lab.hosts
    shrink_shm(first)
    first.name_is_loopback()
    first.run(["hostname", f"{first.name}.lab.example"], user="root")  # as RHEL and many clouds have it
    files = resource.getrlimit(resource.RLIMIT_NOFILE)[1] - 100  # what a container's root may not exceed
    asked = ("up", str(lab.inventory), "--playbook", "hosts.yml", "--", *AS_ROOT, "-e", f"open_files={files}")
    assert changed(user.run(*asked)) == {"gpu00": 5, "gpu01": 2}
    assert shm(first) == pytest.approx(shm(second), rel=0.01)
    for host in (first, second):
        for name in (host.name, host.run(["hostname"]).stdout.strip()):
            own = host.run(["getent", "ahosts", name]).stdout
            assert {line.split()[0] for line in own.splitlines()} == {host.address}
        assert host.run(["getent", "hosts", first.address]).stdout.split()[1] == first.name
    assert first.run(["su", "-", "trainer", "-c", "ulimit -Hn"], user="root").stdout.strip() == str(files)
    assert changed(user.run(*asked)) == {"gpu00": 0, "gpu01": 0}


def test_names_stay_where_a_host_that_was_not_asked_has_no_address_in_the_inventory(
    make_lab: MakeLab, user: User
) -> None:
    lab = with_root(make_lab(2))
    (first, _) = lab.hosts
    inventory = lab.write_inventory(lab.folder / "names.yaml", more={"all": {"clusterddp_address": "known.by.facts"}})
    block = "# {} hosts of the inventory, by clusterddp's hosts.yml\n"
    text = f"127.0.0.1 localhost\n127.0.1.1 gpu00\n{block.format('BEGIN')}10.0.0.7 gpu01\n{block.format('END')}"
    first.write("/etc/hosts", text, user="root")
    asked = (
        "up",
        str(inventory),
        "--limit",
        "gpu00",
        "--playbook",
        "hosts.yml",
        "--",
        *AS_ROOT,
        "-e",
        "open_files=4000",
    )
    done = user.run(*asked)
    assert "/etc/hosts stays as it is: the address of gpu01 is not known" in done.out
    assert first.run(["cat", "/etc/hosts"]).stdout == text


FIX = remedy("checks/engine.py", "{}; {} does it (`clusterddp doctor --fix`)")


def test_the_doctor_shows_what_a_playbook_would_change_and_changes_it_after_a_yes(
    make_lab: MakeLab, user: User
) -> None:
    lab = with_root(make_lab(2))
    host = lab.hosts[1]
    shrink_shm(host)
    asked = ("doctor", "-i", str(lab.inventory), "--only", "shm", "--fix")
    shown = user.run(*asked, "--", *AS_ROOT)
    assert FIX.printed(shown.out)[1] == "hosts.yml"
    assert "clusterddp: hosts.yml on gpu01, for shm; it would change:" in shown.err
    assert "/dev/shm has 64.00 MB and would have " in shown.out
    assert "skipping:" not in shown.out  # what changes nothing is not shown
    assert "ok: [" not in shown.out
    assert remedy("cli/fix.py", "nothing is changed: nobody is here to say yes; --yes does").found(shown.notes[-1])
    assert (shown.code, shm(host)) == (1, 64 << 20)
    done = user.run(*asked, "--yes", "--", *AS_ROOT)
    assert changed(done)["gpu01"] >= 2
    assert shm(host) > 64 << 20


ASK_FOR_IT = remedy(
    "cli/fix.py", "{} failed: ansible-playbook ended with {}; it may need root: `clusterddp doctor --fix -- -K`"
)


@pytest.mark.skipif(not shutil.which("chpasswd"), reason="no chpasswd: root gets a password by it")
def test_a_playbook_that_may_not_be_root_is_by_the_told_command_which_asks_for_the_password(
    make_lab: MakeLab, user: User
) -> None:
    lab = make_lab(1)
    (host,) = lab.hosts
    shrink_shm(host)
    password = secrets.token_hex(8)
    host.run(["chpasswd"], user="root", text=f"root:{password}\n")
    own = {"ansible_become_method": "su", "ansible_python_interpreter": "/usr/bin/python3"}
    lab.write_inventory(user.folder / "i.yaml", more={"all": own})
    refused = user.run("doctor", "-i", "i.yaml", "--only", "shm", "--fix")
    assert (refused.code, ASK_FOR_IT.printed(refused.notes[-1])[0], shm(host)) == (1, "hosts.yml", 64 << 20)
    (command,) = ASK_FOR_IT.commands(refused.err)
    with user.start(*shlex.split(command)[1:], terminal=True) as live:
        live.wait_for("BECOME password:")
        live.key(f"{password}\n")
        live.wait_for("run them? [y/N]")
        live.key("y\n")
        live.wait_for("BECOME password:", times=2)
        live.key(f"{password}\n")
        done = live.end()
    assert done.code == 0, done.out
    assert shm(host) > 64 << 20


def loaded(host: LabHost, table: str = "clusterddp") -> bool:
    return host.run(["nft", "list", "table", "inet", table], user="root", check=False).returncode == 0


def dials(source: LabHost, target: LabHost, port: int, *, own_port: int = 0) -> bool:
    """Whether a connection from one host to a port of another is let through: somebody answers, if only by a reset."""

    def dial() -> bool:
        try:
            with socket.create_connection((target.address, port), timeout=1, source_address=("", own_port)):
                return True
        except ConnectionRefusedError:
            return True
        except TimeoutError:
            return False

    return inside_network(source.namespace, dial)


def no_new_connections(host: LabHost, *, on: bool) -> None:
    rule = ["INPUT", "-p", "tcp", "--dport", "22", "--syn", "-j", "DROP"]
    host.run(["iptables", "-A" if on else "-D", *rule], user="root")


def test_the_firewall_closes_the_ports_to_strangers_alone_and_goes_where_it_locks_out(
    make_lab: MakeLab, user: User
) -> None:
    lab = with_root(make_lab(3))
    first, second, stranger = lab.hosts
    inventory = lab.write_inventory(lab.folder / "two.yaml", hosts=["gpu00", "gpu01"])
    second.run(["nft", "add table inet other; add chain inet other c"], user="root")
    seconds = 60 if ALL else 10
    asked = ("up", str(inventory), "--playbook", "firewall.yml", "--", *AS_ROOT, "-e", f"confirm_seconds={seconds}")
    with user.start(*asked) as live:
        live.wait_for("TASK [Compare the table]")
        no_new_connections(first, on=True)  # what is open goes on; who comes anew stays out
        done = live.end()
    assert done.code == 1
    assert "firewall.yml failed: ansible-playbook ended with" in done.err
    wait_until("the table is taken back", lambda: not loaded(first), timeout=seconds + 30.0)
    assert "table.nft" not in first.run(["ls", "/etc/clusterddp-firewall"], user="root").stdout.split()
    assert_closed_to(stranger, second)
    assert dials(first, second, PORT)
    assert loaded(second, "other")
    if ALL:  # again, for who was locked out
        no_new_connections(first, on=False)
        assert changed(user.run(*asked)) == {"gpu00": 4, "gpu01": 0}
        assert_closed_to(stranger, first)


def assert_closed_to(stranger: LabHost, target: LabHost) -> None:
    """The ports of runs are closed to a host, and no other ones, nor what the target begins itself from such a port."""
    assert loaded(target)
    assert not dials(stranger, target, PORT)
    assert dials(stranger, target, 22)
    assert dials(stranger, target, PORT + 1000)
    assert dials(target, stranger, 22, own_port=PORT)


@pytest.mark.parametrize("name", NAMES)
def test_a_playbook_is_of_ansibles_own_modules(name: str) -> None:
    modules = set(re.findall(r"^\s+([a-z_]+\.[a-z_]+\.[a-z_]+):", find_playbook(name).read_text(), re.MULTILINE))
    assert {module.rpartition(".")[0] for module in modules} == {"ansible.builtin"}


def test_a_linter_has_nothing_to_say_of_the_playbooks_at_its_strictest_profile(tmp_path: Path) -> None:
    linter = BIN / "ansible-lint"
    if not linter.exists():
        pytest.skip("ansible-lint is not installed")
    env = {**os.environ, "PATH": f"{BIN}:{os.environ['PATH']}", "HOME": str(tmp_path), "NO_COLOR": "1"}
    folder = find_playbook("hosts.yml").parent
    argv = [str(linter), "--offline", "--profile", "production", *(str(folder / name) for name in NAMES)]
    done = subprocess.run(argv, cwd=tmp_path, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


@whole
def test_a_firewall_is_left_to_who_rules_it(make_lab: MakeLab, user: User) -> None:
    lab = with_root(make_lab(1))
    (host,) = lab.hosts
    asked = ("up", str(lab.inventory), "--playbook", "firewall.yml", "--", *AS_ROOT)
    host.write("/etc/ufw/ufw.conf", "ENABLED=yes\n", user="root")
    done = user.run(*asked)
    assert "ufw rules this host: let 29400-29499 (TCP, UDP) through there" in done.out
    host.write("/etc/ufw/ufw.conf", "ENABLED=no\n", user="root")
    host.write("/usr/local/bin/firewall-cmd", "#!/bin/sh\necho running\n", user="root", mode=0o755)
    assert "firewalld rules this host" in user.run(*asked).out
    host.run(["rm", "/usr/local/bin/firewall-cmd"], user="root")
    done = user.run(*asked, "-e", "clusterddp_ports=20-30")
    assert "clusterddp_ports 20-30 holds port 22, on which SSH listens" in done.out
    assert not loaded(host)


@whole
def test_a_firewall_needs_every_hosts_addresses(make_lab: MakeLab, user: User) -> None:
    lab = with_root(make_lab(2))
    done = user.run("up", str(lab.inventory), "--limit", "gpu00", "--playbook", "firewall.yml", "--", *AS_ROOT)
    assert "gpu01 was not asked for its addresses: run this on all hosts, without --limit" in done.out
    assert not loaded(lab.hosts[0])


@whole
def test_an_account_is_made_that_a_key_opens_alone(make_lab: MakeLab, user: User) -> None:
    lab = with_root(make_lab(2))
    inventory = lab.write_inventory(lab.folder / "alice.yaml", more={"all": {"ansible_user": "alice"}})
    key = f"user_key={lab.folder}/id_ed25519.pub"
    asked = ("up", str(inventory), "--playbook", "users.yml", "--", *AS_ROOT, "-e", key)
    looked = user.run(*asked, "--check").out
    assert re.findall(r"^gpu0\d .* changed=(\d) .* failed=(\d)", looked, re.MULTILINE) == [("2", "0")] * 2
    assert changed(user.run(*asked)) == {"gpu00": 2, "gpu01": 2}  # and `up` comes in as alice
    assert lab.hosts[0].run(["getent", "shadow", "alice"], user="root").stdout.split(":")[1] == "*"
    assert changed(user.run(*asked)) == {"gpu00": 0, "gpu01": 0}


# What the user of an account puts where root is to let a key in, and what root must leave alone then.
LINKS = {
    "the folder": ("rm -r ~/.ssh; ln -s /srv/roots ~/.ssh", "not permitted"),
    "the file": ("rm ~/.ssh/authorized_keys; ln -s /srv/roots/file ~/.ssh/authorized_keys", "ermission denied"),
    "a pipe": ("rm ~/.ssh/authorized_keys; mkfifo ~/.ssh/authorized_keys", "is no file"),
}


@whole
@pytest.mark.parametrize("what", LINKS)
def test_a_link_of_an_account_gives_its_user_nothing_of_roots(make_lab: MakeLab, user: User, what: str) -> None:
    lab = with_root(make_lab(1))
    (host,) = lab.hosts
    inventory = lab.write_inventory(lab.folder / "alice.yaml", more={"all": {"ansible_user": "alice"}})
    key = f"user_key={lab.folder}/id_ed25519.pub"
    asked = ("up", str(inventory), "--playbook", "users.yml", "--", *AS_ROOT, "-e", key)
    assert changed(user.run(*asked)) == {"gpu00": 2}
    plant, said = LINKS[what]
    host.run(
        ["sh", "-c", "mkdir -m 755 /srv/roots; echo secret >/srv/roots/file; chmod 600 /srv/roots/file"], user="root"
    )
    state = ["stat", "-c", "%U %a %s %Y", "/srv/roots", "/srv/roots/file"]
    before = host.run(state, user="root").stdout
    host.run(["su", "alice", "-c", plant], user="root")
    done = user.run(*asked)
    assert done.code == 1
    assert said in done.out
    assert host.run(state, user="root").stdout == before


@whole
def test_a_python_that_is_there_is_left_alone(make_lab: MakeLab, user: User) -> None:
    lab = with_root(make_lab(1))
    assert changed(user.run("up", str(lab.inventory), "--playbook", "python.yml", "--", *AS_ROOT)) == {"gpu00": 0}


# A package of python3-venv that brings what the host's python3 lacks, and nothing else for apt-get to find.
REPOSITORY = r"""
set -e
: >/root/.bashrc  # an own Python there is not the host's
lacking=$(/usr/bin/python3 -c 'import ensurepip, os; print(os.path.dirname(ensurepip.__file__))')
mkdir -p /srv/packages /srv/new/DEBIAN "/srv/new$(dirname "$lacking")"
cp -r "$lacking" "/srv/new$lacking"
dpkg --purge --force-all $(dpkg-query -W -f '${Package}\n' 'python3*-venv') >/dev/null 2>&1
cat >/srv/new/DEBIAN/control <<'END'
Package: python3-venv
Version: 999
Architecture: all
Maintainer: nobody <nobody@example.com>
Description: made by a test
END
dpkg-deb --build /srv/new /srv/packages/new.deb >/dev/null
cd /srv/packages
{ cat /srv/new/DEBIAN/control; echo "Filename: ./new.deb"; echo "Size: $(stat -c %s new.deb)"
  echo "SHA256: $(sha256sum new.deb | cut -d' ' -f1)"; } >Packages
rm -rf /etc/apt/sources.list /etc/apt/sources.list.d/* /var/lib/apt/lists/*
echo 'deb [trusted=yes] file:/srv/packages ./' >/etc/apt/sources.list
echo 'APT::Sandbox::User "root";' >/etc/apt/apt.conf.d/99sandbox
"""


@whole
@pytest.mark.skipif(not shutil.which("dpkg-deb"), reason="no Debian: its packages are what is installed")
def test_a_python_that_cannot_make_environments_is_completed_by_the_hosts_package_manager(
    make_lab: MakeLab, user: User
) -> None:
    lab = with_root(make_lab(1))
    (host,) = lab.hosts
    host.run(["sh", "-c", REPOSITORY], user="root")
    makes = ["/usr/bin/python3", "-c", "import ensurepip"]
    assert host.run(makes, check=False).returncode
    asked = ("up", str(lab.inventory), "--playbook", "python.yml", "--", *AS_ROOT)
    assert changed(user.run(*asked)) == {"gpu00": 1}
    assert host.run(makes, check=False).returncode == 0
    assert changed(user.run(*asked)) == {"gpu00": 0}


@whole
def test_hosts_without_gpus_are_left_alone_by_the_drivers_playbook(make_lab: MakeLab, user: User) -> None:
    lab = with_root(make_lab(1))
    assert changed(user.run("up", str(lab.inventory), "--playbook", "nvidia.yml", "--", *AS_ROOT)) == {"gpu00": 0}
