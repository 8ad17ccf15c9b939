"""The commands and their options, a project folder to give them in, and what a command that fails has said."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click
import pytest

from clusterddp.cli.main import cli, main

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project that is the current folder, and no word of ours in the environment."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    for name in ("CLUSTERDDP_GRACE", "CLUSTERDDP_LIMIT", "CLUSTERDDP_INVENTORY", "CLUSTERDDP_PROJECT"):
        monkeypatch.delenv(name, raising=False)
    (tmp_path / ".git").mkdir()
    (tmp_path / "train.py").write_text("")
    (tmp_path / "README.md").write_text("# Words\n\n[gpu]\n")
    return tmp_path


def command(name: str) -> click.Command:
    found = cli.get_command(click.Context(cli), name)
    assert found
    return found


def options(name: str) -> set[str]:
    """Every spelling of every option of a command."""
    found = [parameter for parameter in command(name).params if isinstance(parameter, click.Option)]
    return {"-h", "--help"}.union(*({*option.opts, *option.secondary_opts} for option in found))


def said(capsys: pytest.CaptureFixture[str], *argv: str) -> tuple[int, list[str]]:
    """The exit code, and the lines on stderr without our name; nothing may be on stdout."""
    with pytest.raises(SystemExit) as ended:
        main(list(argv))
    out, err = capsys.readouterr()
    lines = err.splitlines()
    assert not out
    assert all(line.startswith("clusterddp: ") for line in lines), err
    assert isinstance(ended.value.code, int)
    return ended.value.code, [line.removeprefix("clusterddp: ") for line in lines]


def project(folder: Path, text: str) -> None:
    (folder / "pyproject.toml").write_text(f"[tool.clusterddp]\n{text}\n")
