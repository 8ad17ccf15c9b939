"""Rank 0 calls barrier in a branch of its own.

class: other-operation
ranks: 0
"""

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
for epoch in range(2):
    dist.all_reduce(torch.ones(4))
    if epoch == 1:
        print("ready", flush=True)
    if epoch == 1 and dist.get_rank() == 0:
        dist.barrier()  # HERE
dist.all_gather_object([None] * 3, "end")
