"""The environment of a job on this host, in which its interpreter is looked for."""

from typing import Dict, Mapping

from ..shared.probes.facts_records import PythonQuery
from ..system.setup_env import setup_environment


def job_environment(job: PythonQuery, session: Mapping[str, str]) -> Dict[str, str]:
    """The session's variables after the setup lines, and those of the inventory; raises Refused if a line fails."""
    return {**setup_environment(job.setup, session), **job.env}
