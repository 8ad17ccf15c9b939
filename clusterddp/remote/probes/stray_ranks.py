"""The operation ``stray_ranks``: workers of a torchrun that clusterddp did not start, such as those of a job by hand.

Only this user's processes are found: the kernel shows no other user's environment.
"""

from typing import Any, Dict, List

from ..helper.request import Request
from ..shared.probes.torchrun_records import StrayRank, StrayRanks
from ..shared.schema.record import to_fields
from ..system.procfs import ProcStat, snapshot

MAX_WORKERS = 64  # workers that are reported


def stray_ranks(_request: Request) -> Dict[str, Any]:
    """Operation: workers by their environment, as ``StrayRanks`` (shared/probes/torchrun_records.py)."""
    table = snapshot()
    environments = {pid: _environment(process) for pid, process in table.items()}
    workers = {pid for pid, environment in environments.items() if _is_stray(environment)}
    roots = sorted(pid for pid in workers if table[pid].parent not in workers)
    return to_fields(StrayRanks(tuple(_rank_of(pid, environments[pid]) for pid in roots[:MAX_WORKERS])))


def _is_stray(environment: Dict[str, str]) -> bool:
    """Whether an environment is that of a worker of a torchrun, and not of ours."""
    numbers = [environment.get(name, "") for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK")]
    return all(number.isdecimal() and len(number) < 10 for number in numbers) and "CLUSTERDDP_RUN_ID" not in environment


def _rank_of(pid: int, environment: Dict[str, str]) -> StrayRank:
    return StrayRank(pid, int(environment["RANK"]), int(environment["WORLD_SIZE"]))


def _environment(process: ProcStat) -> Dict[str, str]:
    """The environment that a process was started with; empty where it cannot be read."""
    try:
        with open(process.folder + "/environ", "rb") as stream:
            entries: List[str] = stream.read().decode(errors="replace").split("\0")
    except OSError:
        return {}
    return {name: value for name, _, value in (entry.partition("=") for entry in entries)}
