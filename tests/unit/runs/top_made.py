"""Hosts and ranks of a run of three, as they answer `top`."""

from __future__ import annotations

from typing import Any

from clusterddp.remote.shared.collectives.lateness import ALWAYS, LateRanks
from clusterddp.remote.shared.collectives.pace_records import GroupPace, WorkerPace
from clusterddp.remote.shared.probes.gpu_records import Xid
from clusterddp.remote.shared.probes.usage_records import GpuProcess, GpuUsage, HostUsage, NicCounters
from clusterddp.runs.top_looks import HostLook, RankLook, TopLook

SECOND = 1_000_000_000
GIB, MB = 1 << 30, 1_000_000
CALLED_US = 1_795_462_968_000_000
GPU = GpuUsage(
    number=0,
    uuid="GPU-33333333-aaaa-bbbb-cccc-000000000000",
    name="NVIDIA H100 80GB HBM3",
    bus="00000000:19:00.0",
    busy_percent=97,
    used_mib=61234,
    memory_mib=81559,
    watts=612,
    celsius=64,
    processes=(GpuProcess(7, "alice", "python train.py", 61200, "33n7fac6he"),),
)


def usage(seconds: int, **more: Any) -> HostUsage:
    """An answer so many seconds after the host's boot: half its cores' time is used, and some bytes flow."""
    made = HostUsage(
        time_ns=seconds * SECOND,
        cores=8,
        cpu_busy=seconds * 400,
        cpu_total=seconds * 800,
        cpu_pressure=1.5,
        memory=64 * 10**9,
        memory_free=16 * 10**9,
        disk_read=seconds * 5 * MB,
        disk_written=seconds * 2 * MB,
        disk=1000 * 10**9,
        disk_free=50 * 10**9,
        nics=(NicCounters("eth0", seconds * MB, 0), NicCounters("mlx5_0:1", seconds * 900 * MB, seconds * 800 * MB)),
        gpus=(GPU, GPU._replace(number=1, bus="00000000:2A:00.0", processes=())),
        xids=(Xid(79, "0000:19:00", 2, 300, "GPU has fallen off the bus"), Xid(31, "0000:2a:00", 1, 90_000)),
    )
    return made._replace(**more)


def pace(rank: int, **more: Any) -> RankLook:
    group = GroupPace("0", 0, 41, CALLED_US + 100 * rank, [1, 100_000, 1, 100_000])
    made = WorkerPace(rank, 0, 0, 100 + rank, 250 * MB, 9.9, 1500, (), (group,))
    return RankLook(host=f"gpu0{rank}", pace=made._replace(**more), late_ms=10.04 if rank == 1 else 0.0)


def look(**more: Any) -> TopLook:
    """Three hosts, of which the last does not answer, and two ranks of a run."""
    xids = usage(1).xids
    known: dict[str, Any] = {
        "time": 1_795_474_306.024,
        "run": "33n7fac6he",
        "name": "night",
        "state": "running",
        "started": 1_795_474_006.0,
        "time_left": 3582.8,
        "late": LateRanks(ALWAYS, (1,), 10.04, 0.98, 99),
        "ranks": (pace(0), pace(1)),
        "hosts": (
            HostLook(name="gpu00", usage=usage(12), before=usage(2), xids=xids),
            HostLook(name="gpu01", usage=usage(9, gpus=(), gpu_error="nvidia-smi did not answer within 8 s")),
            HostLook(name="gpu02", error="no answer for 20 s"),
        ),
    }
    return TopLook(**{**known, **more})
