"""`python -m tests.man_pages FOLDER`: a man page of clusterddp and of each command, by click-man."""

from __future__ import annotations

import sys
from pathlib import Path

import click
from click_man.core import write_man_pages

from clusterddp import __version__
from clusterddp.cli.main import COMMANDS, cli


def write(folder: Path) -> list[Path]:
    """Write the pages; their files."""
    folder.mkdir(parents=True, exist_ok=True)
    context = click.Context(cli)
    for name in COMMANDS:  # click-man asks for those that are there already
        command = cli.get_command(context, name)
        assert command
        cli.add_command(command, name)
    write_man_pages("clusterddp", cli, version=__version__, target_dir=str(folder))
    return sorted(folder.glob("*.1"))


if __name__ == "__main__":
    write(Path(sys.argv[1]))
