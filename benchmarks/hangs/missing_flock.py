"""One rank waits for the lock of a file, as caches have one.

class: missing
ranks: 1
"""

import fcntl
import tempfile

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
dist.all_reduce(torch.ones(4))
with tempfile.NamedTemporaryFile() as first, open(first.name) as second:
    fcntl.flock(first, fcntl.LOCK_EX)
    print("ready", flush=True)
    if dist.get_rank() == 1:
        fcntl.flock(second, fcntl.LOCK_EX)  # HERE
    dist.all_reduce(torch.ones(4))
