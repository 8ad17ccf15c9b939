"""The cache of one rank is read-only: it tries for ever to make its lock there.

class: missing
ranks: 1
"""

import os
import tempfile
import time

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
dist.all_reduce(torch.ones(4))
cache = "/sys" if dist.get_rank() == 1 else tempfile.mkdtemp()
print("ready", flush=True)
while True:
    try:
        os.close(os.open(f"{cache}/step.lock", os.O_CREAT | os.O_EXCL))
        break
    except OSError:
        time.sleep(0.05)  # HERE
dist.all_reduce(torch.ones(4))
