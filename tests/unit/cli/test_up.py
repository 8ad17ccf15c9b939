"""`up`: what is taken for an inventory, and what is said of what is none."""

from __future__ import annotations

from typing import TYPE_CHECKING

from clusterddp.cli.actions import up_action
from clusterddp.errors import UsageError
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
