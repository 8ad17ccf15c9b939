"""The registry of launchers: the names that ``clusterddp_launcher`` may have, and where each launcher's code is."""

from __future__ import annotations

from typing import NamedTuple


class RegisteredLauncher(NamedTuple):
    """A launcher's entry; its module is imported only when the launcher is needed.

    Attributes:
        module: Its ``LAUNCHER`` is the launcher (``launch.launcher.Launcher``).
        job_variable: Set in the shells inside a job that has nodes already; there, runs without an inventory use it.
        job_program: Must be installed there too.
    """

    module: str
    job_variable: str = ""
    job_program: str = ""


LAUNCHERS = {
    "ssh": RegisteredLauncher("clusterddp.launch.ssh.over_ssh"),
    "slurm": RegisteredLauncher("clusterddp.launch.slurm.over_slurm", "SLURM_JOB_ID", "srun"),
}
DEFAULT_LAUNCHER = "ssh"
