"""One rank waits for a pool whose worker was killed, as by the kernel for memory.

class: missing
ranks: 2
"""

import multiprocessing
import os

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
dist.all_reduce(torch.ones(4))
print("ready", flush=True)
if dist.get_rank() == 2:
    with multiprocessing.get_context("fork").Pool(1) as pool:
        pool.map(os._exit, [9])  # HERE
dist.all_reduce(torch.ones(4))
