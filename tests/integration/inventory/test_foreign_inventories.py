"""Inventories that only Ansible reads: `up` has them converted once, and no later command runs anything."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.integration.cli import User
from tests.remedies import remedy, type_line

if TYPE_CHECKING:
    from tests.lab import Lab

BIN = Path(sys.executable).parent
INVENTORIES = Path(__file__).parents[3] / "inventories"
pytestmark = pytest.mark.skipif(not (BIN / "ansible-inventory").exists(), reason="ansible-core is not installed")


@pytest.fixture
def user(tmp_path: Path) -> User:
    return User(tmp_path)


def ini(lab: Lab) -> str:
    lines = [f"{host.name} ansible_host={host.address}" for host in lab.hosts[:2]]
    known = f"-o UserKnownHostsFile={lab.folder}/known_hosts"
    key = f"ansible_ssh_private_key_file={lab.folder}/id_ed25519"
    own = ["ansible_user=trainer", key, f"ansible_ssh_common_args={known!r}"]
    return "\n".join(["[gpu]", *lines, "[all:vars]", *own, f"clusterddp_python={sys.executable}", ""])


def hosts(user: User, *words: str) -> list[str]:
    done = user.run("hosts", *words)
    assert done.code == 0, done.err
    return [line.split("\t")[0] for line in done.lines]


def test_an_ini_inventory_is_converted_by_up_and_remembered(lab: Lab, user: User) -> None:
    path = user.write("hosts.ini", ini(lab))
    user.write("group_vars/gpu.yml", "clusterddp_env: {A: '1'}\n")
    done = user.run("up", "hosts.ini")
    assert done.code == 0, done.err
    assert "hosts.ini is read by Ansible; what it says stands in .clusterddp/inventory-" in done.err
    assert done.notes[-1].startswith("ready: 2 nodes, 2 ranks; remembered hosts.ini")
    path.unlink()  # nothing asks it again
    env = {"PATH": "/usr/bin:/bin"}
    found = user.run("hosts", "--json", env=env).json
    assert [(one["name"], one["groups"]) for one in found] == [("gpu00", ["gpu"]), ("gpu01", ["gpu"])]
    assert user.run("exec", "--limit", "gpu00", "--shell", "echo $A", env=env).lines == ["[gpu00] 1"]


def test_a_script_is_run_once_and_a_folder_and_a_vault_are_read(lab: Lab, user: User) -> None:
    script = user.write("dynamic.py", "#!/bin/sh\necho ran >>ran\ncat <<'END'\n" + as_json(lab) + "\nEND\n")
    refused = user.run("up", "dynamic.py")
    assert (
        refused.code,
        "dynamic.py: is a script that is not executable" in refused.err,
    ) == (2, True)
    script.chmod(0o755)
    assert user.run("up", "./dynamic.py").code == 0
    ran = (user.folder / "ran").read_text()
    assert hosts(user) == ["gpu00", "gpu01"]
    assert (user.folder / "ran").read_text() == ran

    user.write("inventories/hosts", ini(lab))
    assert user.run("up", "inventories").code == 0
    assert hosts(user, "--limit", "gpu") == ["gpu00", "gpu01"]
    assert user.run("up", ".").notes[-1].startswith(".: is a folder, not an inventory file")

    secret = user.write("secret.yaml", (lab.inventory).read_text())
    password = user.write("password", "word\n")
    env = {**os.environ, **user.env}
    argv = [str(BIN / "ansible-vault"), "encrypt", "--vault-password-file", str(password), str(secret)]
    subprocess.run(argv, cwd=user.folder, env=env, capture_output=True, check=True)
    wrong = user.run("up", "secret.yaml")
    assert wrong.code == 2
    assert "secret.yaml: cannot be decrypted: ansible-vault ended with " in wrong.err
    right = user.run("up", "secret.yaml", "--limit", "gpu00", env={"ANSIBLE_VAULT_PASSWORD_FILE": str(password)})
    assert right.code == 0, right.err


VAULT = remedy(
    "inventory/variables/reader.py",
    "`clusterddp up` with this inventory has ansible-vault decrypt it, and remembers it",
)
# By `ansible-vault encrypt_string`, with the password "word".
VAULTED = """!vault |
    $ANSIBLE_VAULT;1.1;AES256
    65313239666437363636333338396131383533303130353934316633623632633065623961616665
    3433383838666136653630666530313137313736313533340a366337363230643035343532316237
    66303862613961623335316330386532383236346465353964333033303334383265363335646232
    6665636564393333610a646335633931386233636264313835613938323465323232663339353736
    3663"""


def test_values_that_are_encrypted_one_by_one_are_decrypted_by_up_where_they_are_used(lab: Lab, user: User) -> None:
    lab.write_inventory(user.folder / "vault.yaml", hosts=["gpu00"])
    user.write("group_vars/all.yaml", f"clusterddp_env:\n  TOKEN: {VAULTED}\nansible_become_password: {VAULTED}\n")
    password = {"ANSIBLE_VAULT_PASSWORD_FILE": str(user.write("password", "word\n"))}
    wrong = user.run("exec", "-i", "vault.yaml", "--", "true")
    assert wrong.code == 2
    assert "is encrypted with ansible-vault (!vault); `clusterddp up vault.yaml` with this inventory" in wrong.notes[-1]
    (command,) = VAULT.commands(wrong.err)
    done = type_line(user, command, **password)
    assert done.code == 0, done.err
    assert user.run("exec", "--shell", "echo $TOKEN").lines == ["[gpu00] s3cret-value"]
    (made,) = (user.folder / ".clusterddp").glob("inventory-*/group_vars/all.yaml")
    assert (made.stat().st_mode & 0o777, "become_password: !vault" in made.read_text()) == (0o600, True)
    assert all(folder.stat().st_mode & 0o777 == 0o700 for folder in (made.parent, made.parents[1]))


def test_the_teams_inventory_to_copy_has_groups_and_a_vault_that_up_opens(user: User) -> None:
    shutil.copytree(INVENTORIES / "team", user.folder / "team")
    shared = user.folder / "team/group_vars/all.yaml"
    here = f"ansible_connection: local\nclusterddp_python: {sys.executable}\n"
    shared.write_text(re.sub(r"\A.*\n.*\n", here, shared.read_text()))
    train = user.folder / "team/group_vars/train.yaml"
    train.write_text(re.sub(r"\A.*\n", "", train.read_text()))  # no GPUs here
    password = {"ANSIBLE_VAULT_PASSWORD_FILE": str(user.write("password", "example\n"))}
    opened = user.run("up", "team/hosts.yaml", env=password)
    assert opened.code == 0, opened.err
    line = "echo $HF_TOKEN $OMP_NUM_THREADS $NCCL_DEBUG"
    assert sorted(user.run("exec", "--shell", line, "--limit", "train").lines) == [
        f"[gpu0{number}] hf_not-a-real-token 8 WARN" for number in range(2)
    ]
    assert user.run("exec", "--shell", line, "--limit", "evaluate").lines == ["[gpu02] hf_not-a-real-token 8"]
    assert "hf_not" not in user.run("hosts", "--json").out


def as_json(lab: Lab) -> str:
    """What a script prints: Ansible's JSON of two hosts."""
    path = lab.write_inventory(lab.folder / "for-script.yaml", hosts=["gpu00", "gpu01"])
    argv = [str(BIN / "ansible-inventory"), "-i", str(path), "--list"]
    return subprocess.run(argv, capture_output=True, text=True, check=True).stdout
