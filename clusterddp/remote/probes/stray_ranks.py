"""The operation ``stray_ranks``: workers of a torchrun that clusterddp did not start, such as those of a job by hand.

Only this user's processes are found: the kernel shows no other user's environment.
"""

from typing import Any, Dict, List

from ..helper.request import Request
from ..shared.probes.torchrun_records import StrayRank, StrayRanks
from ..shared.schema.record import written
from ..system.procfs import ProcStat, snapshot

MOST = 64  # workers that are reported


def stray_ranks(_request: Request) -> Dict[str, Any]:
    """Operation: workers by their environment, as ``StrayRanks`` (shared/probes/torchrun_records.py)."""
    table = snapshot()
    variables = {pid: _variables(process) for pid, process in table.items()}
    workers = {pid for pid, own in variables.items() if _is_stray(own)}
    tops = sorted(pid for pid in workers if table[pid].parent not in workers)
    return written(StrayRanks(tuple(_rank_of(pid, variables[pid]) for pid in tops[:MOST])))


def _is_stray(own: Dict[str, str]) -> bool:
    numbers = [own.get(name, "") for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK")]
    return all(number.isdecimal() and len(number) < 10 for number in numbers) and "CLUSTERDDP_RUN_ID" not in own


def _rank_of(pid: int, own: Dict[str, str]) -> StrayRank:
    return StrayRank(pid, int(own["RANK"]), int(own["WORLD_SIZE"]))


def _variables(process: ProcStat) -> Dict[str, str]:
    """The environment that a process was started with; empty where it cannot be read."""
    try:
        with open(process.folder + "/environ", "rb") as stream:
            entries: List[str] = stream.read().decode(errors="replace").split("\0")
    except OSError:
        return {}
    return {name: value for name, _, value in (entry.partition("=") for entry in entries)}
