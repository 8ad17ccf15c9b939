"""What a command imports: those that look at a run wait for nothing that only launching, judging or copying needs."""

from __future__ import annotations

import subprocess
import sys

import pytest

HEAVY = ("clusterddp.doctor", "clusterddp.checks", "clusterddp.facts", "clusterddp.probe", "clusterddp.launch.prepare")
LISTS = "import sys\n{}\nprint(*sys.modules)"


def imported(statement: str) -> list[str]:
    """The modules of a fresh interpreter that has run the statement."""
    argv = [sys.executable, "-c", LISTS.format(statement)]
    return subprocess.run(argv, check=True, capture_output=True, text=True).stdout.split()


def test_looking_at_a_run_imports_nothing_that_launches_judges_or_syncs() -> None:
    both = "from clusterddp.launch import launcher as base; base.launcher('ssh'); base.launcher('slurm')"
    names = imported(f"from clusterddp.api.cluster import Cluster; {both}")
    assert [name for name in names if name.startswith((*HEAVY, "clusterddp.sync"))] == []


@pytest.mark.parametrize("library", ["paramiko", "fabric", "yaml", "rich", "cryptography", "jinja2"])
def test_a_page_of_help_imports_no_library_but_click(library: str) -> None:
    line = "from clusterddp.cli.main import cli; cli.main(['run', '--help'], standalone_mode=False)"
    assert library not in imported(line)


def test_a_page_of_help_asks_for_no_project() -> None:
    line = "from clusterddp.cli.main import cli; cli.main(['run', '--help'], standalone_mode=False)"
    assert "clusterddp.project.project" not in imported(line)


def test_a_command_on_all_hosts_imports_nothing_that_launches_judges_or_syncs() -> None:
    names = imported(
        "from clusterddp.api.cluster import Cluster; from clusterddp.shell import Command; "
        "Cluster.local().execution(Command(argv=('true',), bare=True))"
    )
    assert [name for name in names if name.startswith((*HEAVY, "clusterddp.sync", "clusterddp.environments.w"))] == []


def test_a_connection_imports_neither_fabric_nor_what_invoke_brings() -> None:
    names = imported(
        "import contextlib; from clusterddp.hosts.ssh import Connector; from clusterddp.inventory import HostEntry\n"
        "entry = HostEntry(name='h', address='127.0.0.1', port=1)\n"
        "with contextlib.suppress(Exception): Connector(connect_timeout=1).open(entry, 'true')\n"
    )
    assert "paramiko.transport" in names
    assert [name for name in names if name.startswith(("fabric", "invoke.", "asyncio", "unittest"))] == []


def test_whoever_uses_invoke_after_a_connection_has_it() -> None:
    before = "from clusterddp.hosts.ssh.invoke_later import import_invoke_later; import_invoke_later()"
    uses = "import paramiko.config; assert paramiko.config.invoke.run('true', hide=True).ok"
    later = "import invoke; assert invoke.run is sys.modules['invoke'].run; from invoke import Context"
    fabric = "from fabric import Connection; from invoke.collection import Collection"
    for wanted in ((uses, later, fabric), (fabric, later, uses), (later, uses)):
        assert "invoke.context" in imported("; ".join((before, *wanted)))
