"""The worker of a rehearsal: process group, checked all-reduce, barrier; one JSON line per stage.

A run starts it in place of a script. Its argument is a JSON object: ``backend``, ``timeout`` (seconds for each step,
which is extended where the import of torch shows that this host is slow or busy).
"""

import json
import os
import sys
import time
from typing import Any

IMPORT_TIMES = 3  # a step may take at least so many times as long as the import of torch
SIZE = 1 << 18  # floats, one MiB: enough to stall in a network that drops large packets


def print_stage(stage: str, **fields: Any) -> None:
    """Print that a stage is reached, as a line of JSON."""
    sys.stdout.write(json.dumps(dict(fields, stage=stage)) + "\n")
    sys.stdout.flush()


def main(*, backend: str, timeout: float) -> None:
    """Run all stages; an exception ends the run and appears in its verdict."""
    print_stage("rendezvous")  # torchrun starts workers when all nodes are there
    from datetime import timedelta

    began = time.monotonic()
    import torch
    import torch.distributed as dist

    timeout = max(timeout, IMPORT_TIMES * (time.monotonic() - began))
    print_stage("import torch")
    cuda = backend == "nccl"
    if cuda:
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group(backend, timeout=timedelta(seconds=timeout))
    rank, world = dist.get_rank(), dist.get_world_size()
    print_stage("process group")
    numbers = torch.full((SIZE,), float(rank + 1), device="cuda" if cuda else "cpu")
    dist.all_reduce(numbers)
    low, high, expected = float(numbers.min()), float(numbers.max()), world * (world + 1) / 2
    if (low, high) != (expected, expected):
        raise RuntimeError("the all-reduce over %d hosts gave %g to %g, not %g" % (world, low, high, expected))
    print_stage("all-reduce")
    dist.barrier()
    print_stage("barrier")
    dist.destroy_process_group()


if __name__ == "__main__":
    main(**json.loads(sys.argv[1]))
