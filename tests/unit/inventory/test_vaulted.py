"""Values that are encrypted one by one: found where we use them, replaced by plain ones; the rest stays as it is."""

from __future__ import annotations

import pytest
import yaml

from clusterddp.errors import InventoryError
from clusterddp.inventory.vaulted import as_yaml, only_used, replace_values, vaulted_values
from clusterddp.inventory.yamlfile import decode

TEXT = b"""
all:
  vars:
    ansible_user: !vault |
      $ANSIBLE_VAULT;1.1;AES256
      6162
    clusterddp_env: {A: !vault "one", B: plain}
    ansible_become_password: !vault |
      stays
  hosts:
    gpu00:
      clusterddp_setup: [x, !vault-encrypted two]
      # after
      other: !vault three
"""


def test_those_of_variables_that_we_use_are_found_in_order() -> None:
    found = [value.text for value in vaulted_values(TEXT, {"ansible_user", "clusterddp_env", "clusterddp_setup"}, "f")]
    assert found == ["$ANSIBLE_VAULT;1.1;AES256\n6162\n", "one", "two"]


@pytest.mark.parametrize("tag", [b"&v !vault", b"!vault &v"])
def test_a_value_that_an_anchor_shares_is_found_once(tag: bytes) -> None:
    text = b"a: {x: %s one}\nb:\n  x: *v\n" % tag
    found = list(vaulted_values(text, {"x"}, "f"))
    assert [value.text for value in found] == ["one"]
    assert yaml.safe_load(replace_values(text, found, ["plain"])) == {"a": {"x": "plain"}, "b": {"x": "plain"}}


@pytest.mark.parametrize(
    "plain", ["s3cret", "", "a: b # c", 'quote " and \\', "two\nlines\n", "\U0001f600 \x85 \x7f", "yes"]
)
def test_any_text_takes_its_place_and_nothing_else_changes(plain: str) -> None:
    found = list(vaulted_values(TEXT, {"ansible_user", "clusterddp_env", "clusterddp_setup"}, "f"))
    made = replace_values(TEXT, found, [plain] * 3)
    assert made.count(b"!vault") == 2
    data = yaml.safe_load(made.replace(b"!vault ", b""))["all"]
    assert (data["vars"]["ansible_user"], data["vars"]["clusterddp_env"]) == (plain, {"A": plain, "B": "plain"})
    assert data["hosts"]["gpu00"]["clusterddp_setup"] == ["x", plain]


def test_nothing_is_found_in_nothing() -> None:
    assert list(vaulted_values(b"", {"x"}, "f")) == []


@pytest.mark.parametrize("start", ["", "\N{ZERO WIDTH NO-BREAK SPACE}"])
def test_tabs_and_a_byte_order_mark_move_no_value(start: str) -> None:
    text = f"{start}a:\t1\t# ä\nx: !vault |\n  one\nb: 2\t# end\n".encode()
    found = list(vaulted_values(text, {"x"}, "f"))
    assert [value.text for value in found] == ["one\n"]
    assert replace_values(text, found, ["plain"]).decode() == 'a:\t1\t# ä\nx: "plain"\nb: 2\t# end\n'


def test_what_is_no_yaml_is_said_without_its_text() -> None:
    with pytest.raises(InventoryError, match=r"^f:1:13: is not YAML") as caught:
        list(vaulted_values(b'x: "s3cret\\ud83d"', {"x"}, "f"))
    assert "s3cret" not in str(caught.value)
    assert caught.value.__suppress_context__


def test_a_character_that_json_escapes_as_a_pair_stays_one() -> None:
    text = b'{\n\t"ansible_user": "\\ud83d\\ude00", "\\ud83d": ["\\/\\t", 1e5, 0.10, null, true, "yes"]}\n'
    written = as_yaml(text)
    assert yaml.safe_load(written) == {"ansible_user": "\U0001f600", "\ufffd": ["/\t", "1e5", 0.1, None, True, "yes"]}
    assert b"0.10" in written
    assert decode(only_used(text, "f"), "f").data == {"ansible_user": "\U0001f600"}


def test_of_merged_variables_those_that_we_use_are_kept_and_the_last_of_each() -> None:
    text = b"""
x: &x {password: s3cret, ansible_user: alice, ansible_port: 22}
y: &y {ansible_user: bob, ansible_host: 010}
<<: [*x, *y]
ansible_port: 2200
"""
    made = only_used(text, "f")
    found = decode(made, "f")
    used = {"ansible_user", "ansible_host", "ansible_port"}
    assert found.data.texts == {name: decode(text, "f").data.texts[name] for name in used}
    assert (set(found.data), found.duplicates, b"s3cret" in made) == (used, (), False)
