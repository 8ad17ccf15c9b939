"""The registry of launchers: the names that ``clusterddp_launcher`` may have, and where each launcher's code is."""

from __future__ import annotations

from typing import NamedTuple


class RegisteredLauncher(NamedTuple):
    """A launcher's entry; its module is imported only when the launcher is needed."""

    module: str  # its ``LAUNCHER`` is the launcher (``launch.launcher.Launcher``)
    # whether it finds the hosts of a run by itself, so that an inventory need not name them
    chooses_hosts: bool = False
    # set in the shells inside a job that has nodes already; there, runs without an inventory use it
    job_variable: str = ""
    job_program: str = ""  # must be installed there too


LAUNCHERS = {
    "ssh": RegisteredLauncher("clusterddp.launch.ssh.over_ssh"),
    "slurm": RegisteredLauncher(
        "clusterddp.launch.slurm.over_slurm", chooses_hosts=True, job_variable="SLURM_JOB_ID", job_program="srun"
    ),
}
DEFAULT_LAUNCHER = "ssh"


def chooses_hosts(name: str) -> bool:
    """Whether the launcher with this name finds the hosts of a run by itself."""
    return name in LAUNCHERS and LAUNCHERS[name].chooses_hosts
