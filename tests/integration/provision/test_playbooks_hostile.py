"""Playbooks on hosts of which some lie: what root writes elsewhere, and what is said of the liars."""

from __future__ import annotations

import json
import os
import re
import secrets
import shutil
from typing import TYPE_CHECKING, Any

import pytest

from tests.integration.provision.test_playbooks import AS_ROOT, loaded, pytestmark, user, whole, with_root

if TYPE_CHECKING:
    from pathlib import Path

    from tests.conftest import MakeLab
    from tests.integration.cli import Done, User
    from tests.lab.host import LabHost

__all__ = ["pytestmark", "user"]
LINE = "6.6.6.6 bank.example"
# A host's Python: the real one, whose modules report what stands in lies.json besides, or instead.
LIAR = """#!{python} -I
import json, os, subprocess, sys
if "-c" in sys.argv:  # no module of Ansible's: our helper, which talks as it runs
    os.execv("{python}", ["{python}", *sys.argv[1:]])
done = subprocess.run(["{python}", *sys.argv[1:]], stdout=subprocess.PIPE)
said = done.stdout
try:
    answer = json.loads(said)
    lies = json.load(open("/srv/lies.json"))
    facts = answer.get("ansible_facts") or {{}}
    lie = lies["facts" if "ansible_hostname" in facts else "later"]
    if lie:
        said = json.dumps(dict(answer, ansible_facts=dict(facts, **lie))).encode()
except (ValueError, AttributeError, TypeError):
    pass
sys.stdout.buffer.write(said)
sys.stdout.flush()
sys.exit(done.returncode)
"""


def make_liar(host: LabHost, facts: dict[str, Any], later: dict[str, Any] | None = None) -> None:
    """Have the host's modules report these facts: those that gather facts, and all others."""
    python = os.path.realpath("/usr/bin/python3")
    host.run(["rm", "-f", "/usr/bin/python3"], user="root")
    host.write("/usr/bin/python3", LIAR.format(python=python), user="root", mode=0o755)
    host.write("/srv/lies.json", json.dumps({"facts": facts, "later": later or {}}), user="root")


def lies(names: tuple[str, ...], value: object) -> dict[str, Any]:
    return {f"ansible_{name}": value for name in names}


def said_of(done: Done, host: LabHost) -> str:
    """What Ansible printed of a host's failures."""
    return "\n".join(re.findall(rf"^(?:failed|fatal): \[{host.name}\].*$", done.out, re.MULTILINE))


def recap(done: Done) -> dict[str, str]:
    """Each host's count of failed tasks."""
    return dict(re.findall(r"^(\S+)\s+: ok=.* failed=(\d+) ", done.out.rpartition("PLAY RECAP")[2], re.MULTILINE))


def names_of(host: LabHost) -> str:
    return host.run(["cat", "/etc/hosts"], user="root").stdout


def test_a_host_that_lies_of_itself_fails_alone_and_writes_in_no_other_hosts_files(
    make_lab: MakeLab, user: User, tmp_path: Path
) -> None:
    lab = with_root(make_lab(5))
    good, lines, types, jinja, late = lab.hosts
    inventory = lab.write_inventory(lab.folder / "names.yaml", more={"all": {"clusterddp_address": "known.by.facts"}})
    facts = ("hostname", "nodename", "memtotal_mb", "service_mgr", "user_id")
    run = f"{{{{ lookup('ansible.builtin.pipe', 'touch {tmp_path}/evaluated') }}}}"
    text = f"10.77.0.9\n{LINE}"
    make_liar(lines, {**lies(facts, text), "ansible_default_ipv4": {"address": text}})
    make_liar(types, {**lies(facts, ["a", {"b": 1}]), "ansible_default_ipv4": {"address": {"10.77.0.9": [LINE]}}})
    make_liar(jinja, {**lies(facts, run * 10_000), "ansible_default_ipv4": {"address": run}})
    # It passes the check, and reports something else with its next tasks; variables of the inventory's names too.
    make_liar(late, {}, {"ansible_default_ipv4": {"address": text}, "clusterddp_address": text, "ansible_host": text})
    before = names_of(lines), names_of(types), names_of(jinja)
    asked = ("up", str(inventory), "--playbook", "hosts.yml", "--", *AS_ROOT, "-e", "open_files=4000")
    done = user.run(*asked)
    assert recap(done) == {"gpu00": "0", "gpu01": "1", "gpu02": "1", "gpu03": "1", "gpu04": "0"}, done.out
    assert "bank.example" not in names_of(good)
    assert "\n10.77.0.9" not in names_of(good)
    assert f"{good.address} gpu00\n" in names_of(good)
    assert (names_of(lines), names_of(types), names_of(jinja)) == before
    for host in (lines, types, jinja):
        for name in ("hostname", "nodename", "default_ipv4.address", "memtotal_mb", "service_mgr"):
            assert re.search(rf"{host.name} reports .* as {name}: that is not ", said_of(done, host)), name
    assert max(map(len, done.out.splitlines())) < 2000
    assert not (tmp_path / "evaluated").exists()


def table(host: LabHost) -> str:
    return host.run(["nft", "list", "table", "inet", "clusterddp"], user="root").stdout


def test_a_host_that_lies_of_its_addresses_is_a_stranger_to_the_others_and_breaks_no_table(
    make_lab: MakeLab, user: User, tmp_path: Path
) -> None:
    lab = with_root(make_lab(4))
    good, lines, types, late = lab.hosts
    run = f"{{{{ lookup('ansible.builtin.pipe', 'touch {tmp_path}/evaluated') }}}}"
    rule = "6.6.6.6 } accept\n tcp dport 1-65535 accept\n#"
    wrong = ["10.77.0.9\n", "999.1.1.1", "6.6.6.0/24", "::/0", "fd00::6 }", rule, run, {"6.6.6.6": 1}, ["6.6.6.6"], 6]
    make_liar(lines, {"ansible_all_ipv4_addresses": wrong, "ansible_all_ipv6_addresses": wrong})
    make_liar(types, {"ansible_all_ipv4_addresses": {"6.6.6.6": 1}, "ansible_all_ipv6_addresses": "6.6.6.6"})
    make_liar(late, {}, {"ansible_all_ipv4_addresses": wrong, "clusterddp_address": rule, "ansible_env": 5})
    done = user.run("up", str(lab.inventory), "--playbook", "firewall.yml", "--", *AS_ROOT, "-e", "confirm_seconds=30")
    assert done.code == 1
    assert {name: code for name, code in recap(done).items() if name != late.name} == {
        "gpu00": "0",
        "gpu01": "1",
        "gpu02": "1",
    }, done.out
    for host in (lines, types):
        assert re.search(rf"{host.name} reports .* as all_ipv4_addresses: that is not ", said_of(done, host))
        assert re.search(rf"{host.name} reports .* as all_ipv6_addresses: that is not ", said_of(done, host))
        assert not loaded(host)
    allowed = set(re.findall(r"[0-9.]{7,}|[0-9a-f:]*::[0-9a-f:]*", table(good)))
    assert {host.address for host in lab.hosts} <= allowed
    lies = ("6.6.6", "999.", "10.77.0.9", "fd00")
    assert not {address for address in allowed if address.startswith(lies)}, allowed
    assert not (tmp_path / "evaluated").exists()


@whole
def test_what_an_account_and_a_system_are_called_is_checked_too(make_lab: MakeLab, user: User, tmp_path: Path) -> None:
    lab = with_root(make_lab(1))
    (host,) = lab.hosts
    run = f"{{{{ lookup('ansible.builtin.pipe', 'touch {tmp_path}/evaluated') }}}}"
    make_liar(host, {"ansible_distribution": run, "ansible_os_family": ["Ubuntu\n"]})
    done = user.run("up", str(lab.inventory), "--playbook", "nvidia.yml", "--", *AS_ROOT)
    assert re.search(r"gpu00 reports .* as distribution: that is not a name", said_of(done, host))
    assert re.search(r"gpu00 reports .* as os_family: that is not a name", said_of(done, host))
    asked = (
        "up",
        str(lab.inventory),
        "--playbook",
        "users.yml",
        "--",
        *AS_ROOT,
        "-e",
        f"user_key={lab.folder}/id_ed25519.pub",
    )
    assert "gpu00 reports" in said_of(user.run(*asked, "-e", '{"user_name": "al\\nice"}'), host)
    make_liar(host, {}, {"login_user": "root"})
    done = user.run(*asked, "-e", "user_uid=20001x", "-e", "user_name=alice")
    assert re.search(r'gpu00 reports \[.*"20001x.*\] as user_uid: that is not ', said_of(done, host))
    assert not (tmp_path / "evaluated").exists()


# Of systemd's programs, what Ansible asks for a time service that runs, and what keeps a user's processes.
SYSTEMD = r"""#!/bin/sh
case $1 in
    list-units) echo "chronyd.service loaded active running time" ;;
    show) printf '%s\n' Id=chronyd.service LoadState=loaded ActiveState=active SubState=running UnitFileState=enabled ;;
esac
"""
LOGINCTL = '#!/bin/sh\nmkdir -p /var/lib/systemd/linger && touch "/var/lib/systemd/linger/$2"\n'


@pytest.mark.skipif(not shutil.which("chpasswd"), reason="no chpasswd: root gets a password by it")
def test_who_logs_in_outlives_the_login_where_the_inventory_names_no_user(make_lab: MakeLab, user: User) -> None:
    lab = make_lab(1)
    (host,) = lab.hosts
    password = secrets.token_hex(8)
    host.run(["chpasswd"], user="root", text=f"root:{password}\n")
    host.run(["mkdir", "-p", "/run/systemd/system"], user="root")
    host.write("/usr/bin/systemctl", SYSTEMD, user="root", mode=0o755)
    host.write("/usr/bin/loginctl", LOGINCTL, user="root", mode=0o755)
    make_liar(host, {"ansible_service_mgr": "systemd"})
    become = {"ansible_become_method": "su", "ansible_become_flags": "-l", "ansible_become_password": password}
    lab.write_inventory(lab.inventory, more={"all": {"ansible_python_interpreter": "/usr/bin/python3", **become}})
    text = lab.inventory.read_text().replace("    ansible_user: trainer\n", "")
    lab.inventory.write_text(text.replace("ansible_ssh_common_args: ", "ansible_ssh_common_args: -o User=trainer "))
    done = user.run("up", str(lab.inventory), "--playbook", "hosts.yml", "--", "-e", "open_files=4000")
    assert done.code == 0, done.out + done.err
    assert host.run(["ls", "/var/lib/systemd/linger"], user="root").stdout == "trainer\n"
