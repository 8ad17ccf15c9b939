"""Rank 0 alone calls an operation; the others go on without any, and sleep. Either may be what was meant.

class: missing
ranks: 0 | 1 2
"""

import time

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
dist.all_reduce(torch.ones(4))
print("ready", flush=True)
if dist.get_rank() == 0:
    dist.all_reduce(torch.ones(4))  # HERE
time.sleep(3600)  # HERE
