"""The rehearsal's worker: a process group, an all-reduce whose sum is checked, a barrier; a line of JSON a stage.

One of the programs of ours that a run starts in place of a script (``LaunchOptions.program``): the host copies it from
the zipapp into the spool. Its one argument is a JSON object: ``backend``, ``timeout`` (seconds for each step).
"""

import json
import os
import sys
from typing import Any, Dict

SIZE = 1 << 18  # floats, a megabyte: enough to stick in a network that drops large packets


def tell(stage: str, **fields: Any) -> None:
    """A stage is reached."""
    sys.stdout.write(json.dumps(dict(fields, stage=stage)) + "\n")
    sys.stdout.flush()


def main(options: Dict[str, Any]) -> None:
    """All stages; an exception ends them, and is the verdict's."""
    tell("rendezvous")  # torchrun starts workers when all nodes are there
    from datetime import timedelta

    import torch
    import torch.distributed as dist

    tell("import torch")
    cuda = options["backend"] == "nccl"
    if cuda:
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group(options["backend"], timeout=timedelta(seconds=options["timeout"]))
    rank, world = dist.get_rank(), dist.get_world_size()
    tell("process group")
    numbers = torch.full((SIZE,), float(rank + 1), device="cuda" if cuda else "cpu")
    dist.all_reduce(numbers)
    low, high, wanted = float(numbers.min()), float(numbers.max()), world * (world + 1) / 2
    if (low, high) != (wanted, wanted):
        raise RuntimeError("the all-reduce over %d hosts gave %g to %g, not %g" % (world, low, high, wanted))
    tell("all-reduce")
    dist.barrier()
    tell("barrier")
    dist.destroy_process_group()


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
