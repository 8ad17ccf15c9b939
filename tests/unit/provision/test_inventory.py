"""Inventories that ansible-inventory converts."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from clusterddp.inventory import load
from clusterddp.provision.inventory import convert

ANSIBLE = Path(sys.executable).with_name("ansible-inventory")
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


def test_hosts_keep_their_order_and_their_variables(tmp_path: Path) -> None:
    source = tmp_path / "hosts.ini"
    source.write_text(INI)
    (tmp_path / "group_vars").mkdir()
    (tmp_path / "group_vars" / "first.yml").write_text(GROUP)
    name, text = convert(source)
    made, by_name = tmp_path / "made" / name, tmp_path / "made" / "by_name.yaml"
    made.parent.mkdir()
    made.write_bytes(text)
    argv = [str(ANSIBLE), "-i", str(source), "--list", "--yaml", "--export"]
    by_name.write_bytes(subprocess.run(argv, capture_output=True, check=True).stdout)
    found, expected = load(made), load(by_name)
    assert [host.name for host in found.hosts] == ["login", "gpu10", "gpu2", "gpu1"]
    assert b"secret: !vault |" in text
    order = {host.name: number for number, host in enumerate(found.hosts)}
    assert found.to_json() == sorted(expected.to_json(), key=lambda host: order[host["name"]])
