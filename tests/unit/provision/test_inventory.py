"""Inventories that ansible-inventory converts."""

from __future__ import annotations

import shlex
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from clusterddp.errors import InventoryError
from clusterddp.inventory import ForeignInventory, load
from clusterddp.provision import inventory
from clusterddp.provision.ansible import source_of
from clusterddp.provision.inventory import convert
from tests.remedies import remedy

ANSIBLE = Path(sys.executable).with_name("ansible-inventory")
VAULT = ANSIBLE.with_name("ansible-vault")
pytestmark = pytest.mark.skipif(not ANSIBLE.exists(), reason="ansible-core is not installed")

INI = """\
login ansible_host=10.0.0.9 clusterddp_role=none

[second]
gpu10 ansible_port=2201
gpu2
[first]
gpu1 clusterddp_nproc=2
gpu2
[train:children]
second
first
[first:vars]
clusterddp_env={"A": "1", "B": "0"}
[train:vars]
ansible_user=alice
clusterddp_env={"B": "2"}
"""
GROUP = """\
note: !unsafe "{{ x }}"
😀: "\\u00e9\\t: '#"
secret: !vault |
  $ANSIBLE_VAULT;1.1;AES256
  3663
"""


@pytest.fixture(autouse=True)
def _password(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path_factory.mktemp("password") / "password"
    file.write_text("word\n")
    monkeypatch.setenv("ANSIBLE_VAULT_PASSWORD_FILE", str(file))


def encrypted(text: str) -> str:
    return subprocess.run([VAULT, "encrypt"], input=text, capture_output=True, text=True, check=True).stdout


def stored(source: Path) -> Path:
    """The inventory as `up` stores it."""
    folder, files = convert(source)
    made = source.parent / "made" / folder
    for name, text in files.items():
        (made / name).parent.mkdir(parents=True, exist_ok=True)
        (made / name).write_bytes(text)
    return made / list(files)[-1]


def test_hosts_keep_their_order_and_their_variables(tmp_path: Path) -> None:
    source = tmp_path / "hosts.ini"
    source.write_text(INI)
    (tmp_path / "group_vars").mkdir()
    (tmp_path / "group_vars" / "first.yml").write_text(GROUP)
    made = stored(source)
    by_name = made.with_name("by_name.yaml")
    argv = [str(ANSIBLE), "-i", str(source), "--list", "--yaml", "--export"]
    by_name.write_bytes(subprocess.run(argv, capture_output=True, check=True).stdout)
    found, expected = load(made), load(by_name)
    assert [host.name for host in found.hosts] == ["login", "gpu10", "gpu2", "gpu1"]
    assert "secret: !vault |" in made.read_text()
    order = {host.name: number for number, host in enumerate(found.hosts)}
    assert found.to_json() == sorted(expected.to_json(), key=lambda host: order[host["name"]])


def test_an_ini_file_may_say_false_and_lists_as_the_remedies_write_them(tmp_path: Path) -> None:
    """Ansible takes only Python's literals there for more than text."""
    source = tmp_path / "hosts.ini"
    for name in ("clusterddp_preload", "clusterddp_carry"):
        source.write_text(f"gpu1\n[all:vars]\nclusterddp_fork_server=false\n{name}=[a/b, c]\n")
        with pytest.raises(InventoryError, match=r"must be a list of .*; write \[") as refused:
            load(stored(source))
        source.write_text(source.read_text().replace("[a/b, c]", refused.value.remedy.removeprefix("write ")))
        (host,) = load(stored(source)).hosts
        assert not host.fork_server
        assert host.preload or host.carry


INVENTORY = """\
all:
  hosts:
    gpu01:
      clusterddp_env: {OWN: a}
  vars:
    ansible_user: 0010
    clusterddp_slurm_time: 1:30:00
    clusterddp_slurm_account: 0123
    clusterddp_env: {VERSION: 3.10, MASK: 0010, BIND: yes}
    clusterddp_secrets: [WANDB]
"""
OF_ALL = """\
clusterddp_env:
  TOKEN: s3cret
  COUNT: 1_000
clusterddp_secrets: [HF]
ansible_become_password: sudo-word
"""
OF_HOST = '{\n\t"clusterddp_env": {"FILE": 1e5}}\n'
FIELDS = ("env", "secrets", "slurm", "user")


def team(folder: Path, inventory: str, of_all: str, of_host: str) -> Path:
    for name, text in (("hosts", inventory), ("group_vars/all/main.yml", of_all), ("host_vars/gpu01.json", of_host)):
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return folder / "hosts"


@pytest.mark.parametrize("vaulted", ["value", "file", "value in a file", "host", "inventory", "all", "json"])
def test_a_vault_changes_no_other_value(tmp_path: Path, vaulted: str) -> None:
    inventory, of_all, of_host = INVENTORY, OF_ALL, OF_HOST
    if vaulted == "json":
        inventory = '{"all": {\n\t"hosts": {"gpu01": {"clusterddp_env": {"A": 1e5, "B": "3.10", "C": 2.50}}}}}\n'
    plain = load(team(tmp_path / "plain", inventory, of_all, of_host)).hosts[0]
    if vaulted in {"value", "value in a file", "json"}:
        of_all = of_all.replace("s3cret\n", "!vault |\n" + textwrap.indent(encrypted("s3cret"), "    "))
    if vaulted in {"file", "value in a file", "all"}:
        of_all = encrypted(of_all)
    if vaulted in {"host", "all"}:
        of_host = encrypted(of_host)
    if vaulted in {"inventory", "all"}:
        inventory = encrypted(inventory)
    source = team(tmp_path / "vaulted", inventory, of_all, of_host)
    with pytest.raises(ForeignInventory):
        load(source)
    made = stored(source)
    found = load(made).hosts[0]
    assert [getattr(found, name) for name in FIELDS] == [getattr(plain, name) for name in FIELDS]
    assert source_of(load(made)) == source
    in_plain = "sudo-word" in (made.parent / "group_vars/all/main.yml").read_text()
    assert in_plain == (of_all == OF_ALL or vaulted in {"value", "json"})


ENCRYPTED = remedy(
    "inventory/varsfiles.py", "`clusterddp up {}` has ansible-vault decrypt it, and remembers the inventory"
)


@pytest.mark.parametrize("encrypt", ["hosts", "group_vars/all/main.yml", "host_vars/gpu01.json"])
def test_the_command_for_an_encrypted_file_names_the_inventory_that_is_converted(tmp_path: Path, encrypt: str) -> None:
    source = team(tmp_path / "our team", INVENTORY, OF_ALL, OF_HOST)
    file = source.parent / encrypt
    file.write_text(encrypted(file.read_text()))
    with pytest.raises(ForeignInventory) as caught:
        load(source)
    (command,) = ENCRYPTED.commands(str(caught.value))
    *words, named = shlex.split(command)
    assert (words, load(stored(Path(named))).hosts[0].env["TOKEN"]) == (["clusterddp", "up"], "s3cret")


def test_tabs_that_load_reads_are_read_beside_a_vault_too(tmp_path: Path) -> None:
    inventory = "all:\n  hosts:\n    gpu01:\t# rack 3\n"
    source = team(tmp_path, inventory, encrypted("ansible_user:\talice\t# of ops\n"), "{}")
    assert load(stored(source)).hosts[0].user == "alice"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("clusterddp_envv: {}\n", "group_vars/all/main.yml:1:clusterddp_envv: 'clusterddp_envv' is not a variable"),
        ("a: [\n", "group_vars/all/main.yml:2:1: is not YAML"),
        ("- a\n", "group_vars/all/main.yml:1: must hold a mapping"),
    ],
)
def test_an_error_in_what_is_decrypted_has_its_place(tmp_path: Path, text: str, words: str) -> None:
    source = team(tmp_path, INVENTORY, encrypted(text), "{}")
    with pytest.raises(InventoryError) as caught:
        load(stored(source))
    assert words in str(caught.value)


def test_an_encrypted_value_that_is_no_text_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inventory, "_decrypt", lambda texts, _: [b"\xff" for _ in texts])
    value = "!vault |\n        $ANSIBLE_VAULT;1.1;AES256\n        00\n"
    (tmp_path / "inventory.yaml").write_text(f"all:\n  hosts: {{gpu00: }}\n  vars:\n    ansible_user: {value}")
    with pytest.raises(InventoryError, match="an encrypted value is no UTF-8 text"):
        convert(tmp_path / "inventory.yaml")


def test_a_wrong_password_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = team(tmp_path, INVENTORY, encrypted(OF_ALL), "{}")
    (tmp_path / "wrong").write_text("other\n")
    monkeypatch.setenv("ANSIBLE_VAULT_PASSWORD_FILE", str(tmp_path / "wrong"))
    with pytest.raises(InventoryError, match="hosts: cannot be decrypted: ansible-vault ended with "):
        convert(source)
