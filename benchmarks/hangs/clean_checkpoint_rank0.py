"""Rank 0 writes a checkpoint to a slow disk; the others wait in a barrier."""

import os
import tempfile
import time

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
dist.all_reduce(torch.ones(4))
print("ready", flush=True)
if dist.get_rank() == 0:
    end = time.monotonic() + float(os.environ.get("PAUSE", "20"))
    with tempfile.NamedTemporaryFile() as file:
        while time.monotonic() < end:
            file.seek(0)
            file.write(bytes(4 << 20))
            os.fsync(file.fileno())
            time.sleep(0.2)
dist.barrier()
