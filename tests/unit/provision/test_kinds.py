"""The patterns by which playbooks know an address, a name, a number: held to Python's own judgement."""

from __future__ import annotations

import ipaddress
import re
from typing import TYPE_CHECKING

import pytest
import yaml
from ansible.parsing.dataloader import DataLoader  # type: ignore[import-untyped]
from ansible.template import Templar, trust_as_template  # type: ignore[import-untyped]
from hypothesis import example, given
from hypothesis import strategies as st

from clusterddp.inventory import load
from clusterddp.provision.playbooks import find_playbook

if TYPE_CHECKING:
    from pathlib import Path

KINDS = yaml.safe_load((find_playbook("hosts.yml").parent / "vars" / "kinds.yml").read_text())["kinds"]
EVIL = ("{}\n", "\n{}", "{} x", "{}\n6.6.6.6 x", "{}\x00", "{}\u2028x", "{{{{ {} }}}}", "{},{}", "{}/8", " {}", "{};")


def fits(kind: str, text: str) -> bool:
    return re.match(KINDS[kind]["pattern"], text) is not None


@given(st.ip_addresses(v=4).map(str) | st.from_regex(r"[0-9.]{0,16}\n?"))
@example("127.0.0.1")
@example("0.0.0.0")
@example("255.255.255.255")
@example("10.077.0.1")
def test_an_ipv4_address_is_what_python_takes_for_one(text: str) -> None:
    try:
        address = ipaddress.IPv4Address(text)
    except ValueError:
        assert not fits("any_ipv4", text)
        assert not fits("ipv4", text)
        return
    assert fits("any_ipv4", text)
    first = int(address) >> 24
    assert fits("ipv4", text) == (0 < first < 224 and not address.is_loopback)


@given(st.ip_addresses(v=6).flatmap(lambda one: st.sampled_from([str(one), one.exploded, str(one).upper()])))
@example("::")
@example("::1")
@example("fe80::")
@example("1:2:3:4:5:6::")
def test_an_ipv6_address_as_programs_print_it_is_known(text: str) -> None:
    assert fits("ipv6", text)


@given(st.from_regex(r"[0-9a-fA-F:.%\n]{0,40}", fullmatch=True))
@example(":::")
@example("1::2::3")
@example("1:")
@example("::1%eth0")
@example("1:2:3:4:5:6:7:8:9")
@example("::12345")
def test_what_is_no_ipv6_address_is_never_taken_for_one(text: str) -> None:
    if fits("ipv6", text):
        assert str(ipaddress.IPv6Address(text))


GOOD = {
    "ipv4": "10.0.0.1",
    "any_ipv4": "127.0.0.1",
    "ipv6": "fd00::1",
    "host_name": "gpu-0_1.example.org",
    "user_name": "alice.b@corp",
    "number": "1048576",
    "id": "0",
    "ports": "29400-29499",
    "path": "/srv/al ice",
    "word": "Red Hat Enterprise Linux",
    "connection": "fe80::1%eth0 50000 10.0.0.1 22",
}


@pytest.mark.parametrize("kind", KINDS)
def test_a_pattern_is_for_the_whole_text(kind: str) -> None:
    good = GOOD[kind]
    assert fits(kind, good)
    assert not fits(kind, "")
    assert not fits(kind, good * 1000)
    bad = [form.format(good, good) for form in EVIL if kind not in ("path", "word") or "\n" in form or "{{" in form]
    assert [text for text in bad if fits(kind, text)] == []


@pytest.mark.parametrize(
    "written", ["29400-29499", "29400 - 29499", [29400, 29499], ["29400", " 29499 "], None], ids=repr
)
def test_the_firewall_knows_ports_as_an_inventory_may_write_them(tmp_path: Path, written: object) -> None:
    given = {} if written is None else {"clusterddp_ports": written}
    (tmp_path / "i.yaml").write_text(yaml.safe_dump({"all": {"hosts": {"a": given}}}))
    assert load(tmp_path / "i.yaml").hosts[0].ports == (29400, 29499)
    asking, closing = yaml.safe_load(find_playbook("firewall.yml").read_text())
    (reported,) = [task["vars"]["reported"] for task in asking["tasks"] if "reported" in task.get("vars", {})]
    for text in (reported["clusterddp_ports"]["value"], closing["vars"]["ports"]):
        assert Templar(DataLoader(), variables=given).template(trust_as_template(text)) == "29400-29499"
    assert fits("ports", "29400-29499")


@pytest.mark.parametrize("name", ["/srv/../etc", "/..", "home", "~", "/a/..\n", "/a\x1b[1m"])
def test_a_path_is_absolute_and_climbs_nowhere(name: str) -> None:
    assert not fits("path", name)


@pytest.mark.parametrize("name", ["-rf", "a/b", "a b", "$", "root:", "..", "a\n"])
def test_a_user_name_is_no_option_and_no_path(name: str) -> None:
    assert not fits("user_name", name)
