"""`up`: what is taken for an inventory, and what is said of what is none."""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from clusterddp.cli.actions import up_action
from clusterddp.errors import HostKeyError, UsageError
from clusterddp.inventory import load
from tests.unit.cli_help import folder, said

if TYPE_CHECKING:
    from pathlib import Path

    import pytest

__all__ = ["folder"]


def test_what_up_does_not_have_ansible_read_is_not_sent_to_it_again(
    capsys: pytest.CaptureFixture[str], folder: Path
) -> None:
    (folder / "hosts.py").write_text("#!/bin/sh\n")
    for name, told in {".": "give the inventory's file", "hosts.py": "chmod u+x it, if you trust it"}.items():
        code, (line,) = said(capsys, "up", name)
        assert (code, line.rpartition("; ")[2], "`" in line) == (2, told, False)


def test_a_host_list_may_be_longer_than_the_name_of_a_file(
    capsys: pytest.CaptureFixture[str], folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def reach_none(*_: object, **__: object) -> None:
        raise UsageError("none is reached")

    monkeypatch.setattr(up_action, "open_cluster", reach_none)
    names = [f"gpu{number:03}" for number in range(60)]
    assert said(capsys, "up", ",".join(names))[1][-1] == "none is reached"
    assert [host.name for host in load(folder / ".clusterddp/inventory.yaml").hosts] == names


def test_a_key_that_stays_unknown_after_a_yes_is_not_asked_about_again(monkeypatch: pytest.MonkeyPatch) -> None:
    error = HostKeyError("gpu00", "is unknown", fingerprint="SHA256:x", known_hosts_line="gpu00 ssh-ed25519 AAAA")
    trusted: list[object] = []
    cluster: Any = SimpleNamespace(connect=lambda writes: [SimpleNamespace(error=error)] * writes, trust=trusted.append)
    monkeypatch.setattr("click.confirm", lambda *_, **__: True)
    for stream in (sys.stdin, sys.stderr):
        monkeypatch.setattr(stream, "isatty", lambda: True)
    assert up_action._ask_about_keys(cluster) == [error]
    assert trusted == [[error]]
