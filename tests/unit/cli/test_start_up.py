"""What a command imports: those that look at a run wait for nothing that only launching, judging or copying needs."""

from __future__ import annotations

import subprocess
import sys

import pytest

HEAVY = ("clusterddp.doctor", "clusterddp.checks", "clusterddp.facts", "clusterddp.probe", "clusterddp.launch.prepare")
LISTS = "import sys; {}; print(*sys.modules)"


def imported(statement: str) -> list[str]:
    """The modules of a fresh interpreter that has run the statement."""
    argv = [sys.executable, "-c", LISTS.format(statement)]
    return subprocess.run(argv, check=True, capture_output=True, text=True).stdout.split()


def test_looking_at_a_run_imports_nothing_that_launches_judges_or_syncs() -> None:
    both = "from clusterddp.launch import base; base.launcher('ssh'); base.launcher('slurm')"
    names = imported(f"from clusterddp.api import Cluster; {both}")
    assert [name for name in names if name.startswith((*HEAVY, "clusterddp.sync"))] == []


@pytest.mark.parametrize("library", ["paramiko", "fabric", "yaml", "rich", "cryptography"])
def test_a_page_of_help_imports_no_library_but_click(library: str) -> None:
    line = "from clusterddp.cli.main import cli; cli.main(['run', '--help'], standalone_mode=False)"
    assert library not in imported(line)


def test_a_command_on_all_hosts_imports_nothing_that_launches_judges_or_syncs() -> None:
    names = imported(
        "from clusterddp.api import Cluster; from clusterddp.shell import Command; "
        "Cluster.local().execution(Command(argv=('true',), bare=True))"
    )
    assert [name for name in names if name.startswith((*HEAVY, "clusterddp.sync", "clusterddp.environments.w"))] == []
