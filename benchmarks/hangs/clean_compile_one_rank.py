"""One rank compiles in its own process; the others have a warm cache and wait for it."""

import os
import time

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
dist.all_reduce(torch.ones(4))
print("ready", flush=True)
if dist.get_rank() == 1:
    end = time.monotonic() + float(os.environ.get("PAUSE", "20"))
    while time.monotonic() < end:
        compile("x = 1\n" * 1000, "step", "exec")
dist.all_reduce(torch.ones(4))
