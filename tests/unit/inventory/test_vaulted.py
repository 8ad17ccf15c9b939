"""Values that are encrypted one by one: found where we use them, replaced by plain ones; the rest stays as it is."""

from __future__ import annotations

import pytest
import yaml

from clusterddp.inventory.vaulted import replace_values, vaulted_values

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
    found = [value.text for value in vaulted_values(TEXT, {"ansible_user", "clusterddp_env", "clusterddp_setup"})]
    assert found == ["$ANSIBLE_VAULT;1.1;AES256\n6162\n", "one", "two"]


@pytest.mark.parametrize("tag", [b"&v !vault", b"!vault &v"])
def test_a_value_that_an_anchor_shares_is_found_once(tag: bytes) -> None:
    text = b"a: {x: %s one}\nb:\n  x: *v\n" % tag
    found = list(vaulted_values(text, {"x"}))
    assert [value.text for value in found] == ["one"]
    assert yaml.safe_load(replace_values(text, found, ["plain"])) == {"a": {"x": "plain"}, "b": {"x": "plain"}}


@pytest.mark.parametrize(
    "plain", ["s3cret", "", "a: b # c", 'quote " and \\', "two\nlines\n", "\U0001f600 \x85 \x7f", "yes"]
)
def test_any_text_takes_its_place_and_nothing_else_changes(plain: str) -> None:
    found = list(vaulted_values(TEXT, {"ansible_user", "clusterddp_env", "clusterddp_setup"}))
    made = replace_values(TEXT, found, [plain] * 3)
    assert made.count(b"!vault") == 2
    data = yaml.safe_load(made.replace(b"!vault ", b""))["all"]
    assert (data["vars"]["ansible_user"], data["vars"]["clusterddp_env"]) == (plain, {"A": plain, "B": "plain"})
    assert data["hosts"]["gpu00"]["clusterddp_setup"] == ["x", plain]


def test_nothing_is_found_in_nothing() -> None:
    assert list(vaulted_values(b"", {"x"})) == []
