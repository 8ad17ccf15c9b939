"""The launcher protocol: one more launcher is one module, and no command knows which one it has."""

from __future__ import annotations

import importlib
import sys
from typing import TYPE_CHECKING

import pytest

from clusterddp.errors import UsageError
from clusterddp.inventory import HostEntry
from clusterddp.inventory.launchers import LAUNCHERS, RegisteredLauncher
from clusterddp.launch import launcher as base
from clusterddp.launch.ssh import over_ssh
from clusterddp.remote.shared.run.run_record import RunRecord
from tests.unit.cli_help import folder, said

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

__all__ = ["folder"]  # fixture

# All that another launcher is made of, said in the fewest words.
ANOTHER = """
from clusterddp.hosts.fanout import Outcome
from clusterddp.remote.shared.run.run_record import RunRecord
from clusterddp.runs.proof import Proof
from clusterddp.runs.run import Run

CALLS = []

class Slurm:
    def render(self, site, options):
        return f"#!/bin/bash\\n#SBATCH --job-name={options.script}\\n"

    def submit(self, site, options):
        CALLS.append("start")
        site.project.record_run(RunRecord(hosts=(), launcher="slurm"))
        return Run(site, "abcdefghjk", 1, {}, {"launcher": "slurm"})

    def ready(self, site):
        return ""

    clean_operation = "clean"

    def describe(self, site, run, entries, wanted, patience=None):
        CALLS.append("describe")
        return [Outcome(name="login", value=[])]

    def begun(self, cluster, run, progress):
        return run

    def cancel(self, cluster, run, hosts, *, grace, reason):
        return [Proof(host=name) for name in hosts]

    def reader(self, cluster, run, host):
        return cluster.host(host)

    def host(self, cluster, run, host):
        return cluster.host(host)

LAUNCHER = Slurm()
"""


def host(name: str, launcher: str) -> HostEntry:
    return HostEntry(name=name, address=name, launcher=launcher)


@pytest.fixture
def another(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """A launcher named slurm that is there; what was called of it."""
    (tmp_path / "another_launcher.py").write_text(ANOTHER)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setitem(LAUNCHERS, "slurm", RegisteredLauncher("another_launcher"))
    yield importlib.import_module("another_launcher").CALLS
    del sys.modules["another_launcher"]


def test_the_default_is_ssh_and_every_name_of_the_inventory_is_looked_for() -> None:
    assert base.choose(None, []) is over_ssh.LAUNCHER
    assert base.choose(None, [host("a", "ssh"), host("b", "ssh")]) is over_ssh.LAUNCHER
    assert base.of_record(RunRecord(hosts=())) is over_ssh.LAUNCHER


def test_one_that_is_not_there_is_refused_by_where_it_was_said() -> None:
    with pytest.raises(UsageError) as caught:
        base.choose("pbs", [])
    assert str(caught.value) == "--launcher pbs is not there yet; leave it out: ssh serves"
    with pytest.raises(UsageError, match=r"^a: clusterddp_launcher: pbs is not there yet; "):
        base.choose(None, [host("a", "pbs")])
    with pytest.raises(UsageError, match=r"^the run's launcher os is not there yet"):
        base.of_record(RunRecord(hosts=(), launcher="os"))


def test_hosts_with_different_launchers_are_one_line() -> None:
    with pytest.raises(UsageError, match=r"^clusterddp_launcher differs: ssh \(a\) and slurm \(b\); choose one"):
        base.choose(None, [host("a", "ssh"), host("b", "slurm")])
    assert base.choose("ssh", [host("a", "ssh"), host("b", "slurm")]) is over_ssh.LAUNCHER


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize("how", [["--launcher", "slurm"], ["--launcher", "slurm", "--dry-run"]], ids=" ".join)
def test_what_a_launcher_cannot_do_is_refused_before_any_host_is_reached(
    capsys: pytest.CaptureFixture[str], how: list[str]
) -> None:
    code, lines = said(capsys, "run", *how, "train.py")
    assert code == 125
    assert lines[-1] == "how many nodes is not said; --nnodes 2, or name the nodes in the inventory"


@pytest.mark.usefixtures("folder")
def test_one_more_module_is_one_more_launcher_for_every_command(
    another: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    from clusterddp.cli.main import main  # noqa: PLC0415

    for words, out in (
        (["run", "--launcher", "slurm", "--dry-run", "train.py"], "#!/bin/bash\n#SBATCH --job-name=train.py\n"),
        (["run", "--launcher", "slurm", "--detach", "train.py"], "abcdefghjk\n"),
    ):
        with pytest.raises(SystemExit) as ended:
            main(words)
        assert (ended.value.code, capsys.readouterr().out) == (0, out)
    said(capsys, "stop", "--all")
    assert another == ["start", "describe"]
