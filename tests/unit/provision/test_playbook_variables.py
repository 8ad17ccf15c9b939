"""What playbooks make of the inventory's hosts: whose address is known, and who has to be asked first."""

from __future__ import annotations

from typing import Any

import pytest
import yaml
from ansible.parsing.dataloader import DataLoader  # type: ignore[import-untyped]
from ansible.template import Templar, trust_as_template  # type: ignore[import-untyped]

from clusterddp.provision.playbooks import find_playbook

KINDS = yaml.safe_load((find_playbook("hosts.yml").parent / "vars" / "kinds.yml").read_text())
ASKED = {"ansible_facts": {"hostname": "b"}}


def last_play(name: str) -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load(find_playbook(name).read_text())[-1]
    return found


def made(text: str, variables: dict[str, Any], **hosts: dict[str, Any]) -> Any:
    """What Ansible makes of a template that stands beside these variables, for hosts with these variables."""
    trusted = {name: trust_as_template(value) if isinstance(value, str) else value for name, value in variables.items()}
    known = {**KINDS, **trusted, "groups": {"all": [*hosts]}, "hostvars": hosts}
    return Templar(DataLoader(), variables=known).template(trust_as_template(text))


@pytest.mark.parametrize(
    ("other", "unknown"),
    [
        ({}, ["b"]),
        ({"ansible_host": "b.example"}, ["b"]),
        ({"clusterddp_address": "b.example", "ansible_host": "10.0.0.2"}, ["b"]),
        ({"ansible_host": "10.0.0.2"}, []),
        (ASKED, []),
        ({"clusterddp_role": "login"}, []),
        ({"ansible_connection": "local"}, []),
    ],
    ids=repr,
)
def test_names_wait_for_who_trains_and_was_not_asked(other: dict[str, Any], unknown: list[str]) -> None:
    one = {"ansible_facts": {"default_ipv4": {"address": "10.0.0.1"}}}
    assert made("{{ unknown }}", last_play("hosts.yml")["vars"], a=one, b=other) == unknown


@pytest.mark.parametrize(
    ("other", "known"),
    [
        ({}, False),
        ({"clusterddp_address": "b.example"}, False),
        ({"clusterddp_address": "10.0.0.0/24"}, False),
        ({"clusterddp_address": "10.0.0.2"}, True),
        ({"clusterddp_address": "fd00::2"}, True),
        (ASKED, True),
    ],
    ids=repr,
)
def test_the_firewall_waits_for_who_was_not_asked(other: dict[str, Any], *, known: bool) -> None:
    (task,) = [task for task in last_play("firewall.yml")["tasks"] if task["name"] == "Know the addresses of all hosts"]
    that = f"{{{{ {task['ansible.builtin.assert']['that']} }}}}"
    assert made(that, {**task.get("vars", {}), "item": "b"}, b=other) is known
