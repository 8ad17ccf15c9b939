"""Host lists on the command line, and the inventories they become."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import yaml

from clusterddp.errors import InventoryError, UsageError
from clusterddp.inventory import difference, from_host_list, load, variables_of, was_edited

if TYPE_CHECKING:
    from pathlib import Path


def test_a_host_list_becomes_an_inventory(tmp_path: Path) -> None:
    inventory = tmp_path / "inventory.yaml"
    text = from_host_list("alice@gpu01, gpu02:2222,[::1]:22,fe80::2,[fe80::3],bob@n[01:02]:2200,")
    inventory.write_text(text)
    loaded = load(inventory)
    assert [(host.name, host.user, host.port) for host in loaded.hosts] == [
        ("gpu01", "alice", None),
        ("gpu02", None, 2222),
        ("::1", None, 22),
        ("fe80::2", None, None),
        ("fe80::3", None, None),
        ("n01", "bob", 2200),
        ("n02", "bob", 2200),
    ]
    assert "n[01:02]" in yaml.safe_load(text)["all"]["hosts"]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "names no host"),
        (" , ", "names no host"),
        ("-gpu01", "is not a host name"),
        ("@gpu01", "user is empty"),
        ("-l@gpu01", "begins with -"),
        ("gpu01,gpu01", "is given twice"),
        ("gpu[1:3],gpu2", "is given twice"),
        ("gpu[3:1]", "is empty"),
        ("gpu01:0", "port 0"),
        ("gpu01:99999", "port 99999"),
        ("gpu 01", "is not a host name"),
        ("a/b", "is not a host name"),
        ("gpu01:ssh", "is not a host name"),
        ("::1:x", "is not a host name"),
    ],
)
def test_a_bad_host_list_is_an_error(text: str, words: str) -> None:
    with pytest.raises(InventoryError, match=words):
        from_host_list(text)


def test_variables_of_the_line_hold_for_all_hosts(tmp_path: Path) -> None:
    variables = variables_of(["clusterddp_python=/opt/a b/python", "clusterddp_nproc=2", "clusterddp_env={A: '1'}"])
    inventory = tmp_path / "inventory.yaml"
    inventory.write_text(from_host_list("gpu[01:02]", variables))
    assert [(host.python, host.nproc, host.env) for host in load(inventory).hosts] == [
        ("/opt/a b/python", 2, {"A": "1"})
    ] * 2


@pytest.mark.parametrize(
    ("name", "value", "field"),
    [
        ("clusterddp_slurm_time", "1:30:00", "slurm"),
        ("clusterddp_slurm_account", "0123", "slurm"),
        ("clusterddp_env", "{A: 0010, B: 3.10, C: yes, D: '0010', E: &e 1_0, F: *e}", "env"),
        ("clusterddp_env", "# none", "env"),
        ("clusterddp_setup", "[module load cuda, 'echo \"a: b\"']", "setup"),
        ("ansible_user", "0010", "user"),
    ],
)
def test_a_value_of_the_line_is_what_the_same_text_is_in_an_inventory(
    tmp_path: Path, name: str, value: str, field: str
) -> None:
    of_line, of_file = tmp_path / "line.yaml", tmp_path / "file.yaml"
    of_line.write_text(from_host_list("gpu01", variables_of([f"{name}={value}"])))
    of_file.write_text(f"all:\n  hosts:\n    gpu01:\n  vars:\n    {name}: {value}\n")
    assert getattr(load(of_line).hosts[0], field) == getattr(load(of_file).hosts[0], field)


@pytest.mark.parametrize(
    ("word", "words"),
    [
        ("clusterddp_nproc", "no NAME=VALUE"),
        ("=2", "no NAME=VALUE"),
        ("clusterddp_nproc=", "no NAME=VALUE"),
        ("clusterddp_nprok=2", "did you mean clusterddp_nproc"),
        ("lr=3", "lr is no variable that clusterddp reads"),
        ("clusterddp_env={", "the value is no YAML"),
        ("clusterddp_env={A: !vault x}", "the value is no YAML"),
        ("clusterddp_env={A: 2024-99-99}", "the value is no YAML"),
        ("clusterddp_setup=x\udcff", "the value is not UTF-8"),
    ],
)
def test_a_word_that_is_no_variable_is_an_error(word: str, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        variables_of([word])


@pytest.mark.parametrize("change", [("gpu01", "gpu02"), ("all:", "# mine\nall:"), ("# Written", "# written")])
def test_what_a_user_has_changed_is_seen(change: tuple[str, str]) -> None:
    text = from_host_list("gpu01")
    assert not was_edited(text)
    assert was_edited(text.replace(*change))
    assert was_edited("all: {hosts: {a: }}\n")
    assert was_edited("")


def test_a_difference_hides_the_values_of_secrets() -> None:
    there = "# head\nall: {hosts: {a: {ansible_password: hunter2, clusterddp_env: {API_KEY: hunter3}}}}\n"
    found = difference(there, from_host_list("b"))
    assert not any("hunter" in line for line in found)
    assert {line[0] for line in found} == {"+", "-"}


@pytest.mark.parametrize(
    "setting",
    [
        'API_KEY: "one,hunter"',
        "API_KEY: one{hunter}",
        '"API_KEY": hunter',
        '{"API_KEY":"hunter"}',
        "API_KEY: |\n        hunter\n\n        hunter",
        "API_KEY:\n        hunter",
        'API_KEY: "one\n        hunter"',
        "API_KEY:\n      - hunter\n      -\n        hunter",
        "? API_KEY\n      : hunter\n        hunter",
        "SETUP: export API_KEY=hunter12",
        "SETUP: [export API_KEY=hunter12, 'echo API_KEY: hunter12']",
        "INDEX_URL: https://me:hunter12@example.com/API_KEY",
    ],
)
def test_a_difference_hides_all_of_a_secret(setting: str) -> None:
    written = from_host_list("gpu01", {"clusterddp_env": {"A": "x"}})
    edited = written.replace("A: x", f"{setting}\n      SHOWN: yes\n      ssl_key_file: /a")
    assert edited != written
    found = difference(edited, written)
    assert not any("hunter" in line for line in found)
    assert {"-       SHOWN: yes", "-       ssl_key_file: /a"} <= set(found)
    assert any("API_KEY" in line for line in found)


def test_a_difference_hides_a_secret_in_a_long_mapping_of_the_line() -> None:
    words = " ".join(["hunter"] * 40)
    text = from_host_list("gpu01", variables_of([f"clusterddp_env={{A: {'x ' * 30}, API_KEY: '{words}'}}"]))
    assert not any("hunter" in line for line in difference("# head\n", text))
