"""Asks Slurm on a login host for what the doctor's checks judge."""

from __future__ import annotations

from typing import TYPE_CHECKING

from clusterddp.checks.evidence import SlurmEvidence
from clusterddp.launch.slurm.client.answers import last_error, read_config, read_scontrol_lines, read_table

if TYPE_CHECKING:
    from collections.abc import Mapping

    from clusterddp.launch.slurm.client.login_host import LoginHost

_ACCOUNT = ("Account", "Partition", "QOS", "MaxTRES", "GrpTRES", "MaxJobs", "GrpJobs", "MaxWall")


def survey(login: LoginHost, asked: Mapping[str, str]) -> SlurmEvidence:
    """Ask Slurm for its configuration, partitions, nodes and the user's associations.

    ``asked`` is what a job would ask for (``SlurmEvidence``). Raises ``HelperError`` if that host has no Slurm, or a
    command does not end in time.
    """
    status, out, err = login.command("scontrol", "show", "config")
    if status:
        munge = [line for line in err.splitlines() if "Munge" in line or "munge.socket" in line]
        return SlurmEvidence(error=last_error(munge[-1] if munge else err or out), asked=asked)
    config = read_config(out)
    partitions = _partitions(login, asked.get("partition", ""))
    names = {partition.get("PartitionName", "") for partition in partitions}
    _, out, _ = login.command("scontrol", "show", "node", "-o")
    nodes = [node for node in read_scontrol_lines(out) if names & set(node.get("Partitions", "").split(","))]
    associations = None
    if config.get("AccountingStorageType", "").endswith("slurmdbd"):
        fields = f"format={','.join(_ACCOUNT)}"
        status, out, _ = login.command("sacctmgr", "-nP", "show", "associations", "user=$USER", fields)
        associations = None if status else tuple(read_table(out, _ACCOUNT))
    return SlurmEvidence(
        config=config, partitions=partitions, nodes=tuple(nodes), associations=associations, asked=asked
    )


def _partitions(login: LoginHost, names: str) -> tuple[Mapping[str, str], ...]:
    """Return what Slurm reports of the partitions with these names that exist; without names, of the default one."""
    _, out, _ = login.command("scontrol", "show", "partition", "-o")
    rows, wanted = read_scontrol_lines(out), names.split(",")
    return tuple(row for row in rows if (row.get("PartitionName") in wanted if names else row.get("Default") == "YES"))
