"""Rank 0 evaluates, with torch; the others wait in a barrier."""

import os
import time

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
dist.all_reduce(torch.ones(4))
print("ready", flush=True)
if dist.get_rank() == 0:
    end = time.monotonic() + float(os.environ.get("PAUSE", "20"))
    with torch.no_grad():
        while time.monotonic() < end:
            torch.ones(200, 200) @ torch.ones(200, 200)
dist.barrier()
