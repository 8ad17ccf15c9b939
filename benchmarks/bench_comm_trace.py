"""What the server for traces costs: CPU time of a step, with the server and without it, in PAIRS interleaved pairs.

A step is an all_reduce of 1,000 floats over gloo by two processes of this machine, as in a small model's bucket; the
server is made as a worker's start-up hook makes it, and nobody asks it. Printed: each pair's ratio, their median, and
the interval in which the true median lies with 95 % probability.

    python benchmarks/bench_comm_trace.py [PAIRS]
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
from math import comb
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
STEPS = 3000
WORKER = """
import os, sys, time
root, rank, store, steps, served = sys.argv[1:]
sys.path.insert(0, root)
import torch
import torch.distributed as dist
if served:
    from clusterddp.remote.worker.hook.sitecustomize import start_trace_server
    start_trace_server(served)
    assert os.path.exists(served)
dist.init_process_group("gloo", store=dist.FileStore(store, 2), rank=int(rank), world_size=2)
values = torch.ones(1000)
for _ in range(200):
    dist.all_reduce(values)
began = time.process_time()
for _ in range(int(steps)):
    dist.all_reduce(values)
print((time.process_time() - began) / int(steps) * 1e6)
dist.destroy_process_group()
"""


def cpu_per_step(*, served: bool) -> float:
    """The microseconds of CPU that a step takes, all threads of both processes together."""
    with tempfile.TemporaryDirectory() as folder:
        environ = {**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
        workers = []
        for rank in ("0", "1"):
            path = f"{folder}/{rank}.sock" if served else ""
            argv = [sys.executable, "-c", WORKER, str(ROOT), rank, f"{folder}/store", str(STEPS), path]
            workers.append(subprocess.Popen(argv, stdout=subprocess.PIPE, env=environ))
        outputs = [worker.communicate()[0] for worker in workers]
    return sum(map(float, outputs))


def interval(values: list[float]) -> tuple[float, float]:
    """Order statistics between which the median lies with at least 95 % probability; the extremes of few values."""
    ordered, count = sorted(values), len(values)
    cut = 0
    while 2 * sum(comb(count, below) for below in range(cut + 2)) <= 0.05 * 2**count:
        cut += 1
    return ordered[cut], ordered[-1 - cut]


def main() -> None:
    """Measure and print."""
    pairs = int(sys.argv[1]) if len(sys.argv) > 1 else 10
    ratios = []
    for pair in range(pairs):
        measured = {served: cpu_per_step(served=served) for served in ((False, True) if pair % 2 else (True, False))}
        ratios.append(measured[True] / measured[False])
        print(f"{measured[False]:8.1f} µs without, {measured[True]:8.1f} µs with: {ratios[-1]:.3f}", flush=True)
    low, high = interval(ratios)
    print(
        f"CPU of a step with the server: {statistics.median(ratios):.3f} times that without ({low:.3f} to {high:.3f})"
    )


if __name__ == "__main__":
    main()
