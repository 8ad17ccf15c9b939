"""ansible.cfg is not read, and what it would have changed is named."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from clusterddp.inventory import ansible_cfg_notices

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture(autouse=True)
def _alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("ANSIBLE_CONFIG", raising=False)


def test_a_setting_that_would_change_a_connection_is_named_with_what_replaces_it(tmp_path: Path) -> None:
    (tmp_path / "ansible.cfg").write_text("[defaults]\nremote_user = alice\nforks = 9\n")
    assert ansible_cfg_notices() == ["ansible.cfg: remote_user is not read; set ansible_user in the inventory"]


def test_nothing_is_said_where_nothing_would_change(tmp_path: Path) -> None:
    assert ansible_cfg_notices() == []
    (tmp_path / "ansible.cfg").write_text("[defaults]\nforks = 9\n")
    assert ansible_cfg_notices() == []


def test_the_file_of_the_environment_stands_before_the_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "ansible.cfg").write_text("[defaults]\nremote_user = alice\n")
    other = tmp_path / "other.cfg"
    other.write_text("[ssh_connection]\nssh_args = -C\n")
    monkeypatch.setenv("ANSIBLE_CONFIG", str(other))
    assert ansible_cfg_notices() == [f"{other}: ssh_args is not read; set ansible_ssh_common_args in the inventory"]


def test_what_is_no_setting_or_another_sections_is_passed_over(tmp_path: Path) -> None:
    lines = [
        "no section",
        "[defaults]",
        "# remote_port = 1",
        "=",
        "\xe9",
        "ssh_args = -C",
        " Remote_User: alice",
        "[other]",
    ]
    (tmp_path / "ansible.cfg").write_bytes("\n".join([*lines, "remote_port = 1"]).encode("latin-1"))
    assert ansible_cfg_notices() == ["ansible.cfg: remote_user is not read; set ansible_user in the inventory"]


@pytest.mark.parametrize("text", ["a" + " " * 1_000_000 + "b\n", "a\n" * 500_000], ids=["blanks", "lines"])
def test_a_file_that_costs_configparser_hours_is_read(tmp_path: Path, text: str) -> None:
    (tmp_path / "ansible.cfg").write_text(f"[defaults]\n{text}remote_user = alice\n")
    assert ansible_cfg_notices() == ["ansible.cfg: remote_user is not read; set ansible_user in the inventory"]


def test_a_file_of_any_size_is_not_read(tmp_path: Path) -> None:
    (tmp_path / "ansible.cfg").write_text("[defaults]\nremote_user = alice\n" + "#\n" * (1 << 20))
    assert ansible_cfg_notices() == []


def test_a_file_below_an_unknown_users_home_is_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ANSIBLE_CONFIG", "~nobody-here/ansible.cfg")
    assert ansible_cfg_notices() == []
