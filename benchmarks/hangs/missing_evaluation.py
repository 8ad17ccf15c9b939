"""Rank 0 evaluates, and its evaluation does not end.

class: missing
ranks: 0
"""

import threading

import torch
import torch.distributed as dist


def evaluate():
    threading.Event().wait(3600)  # HERE


dist.init_process_group("gloo")
for epoch in range(3):
    dist.all_reduce(torch.ones(4))
    if dist.get_rank() == 0 and epoch == 1:
        print("ready", flush=True)
        evaluate()
    elif epoch == 1:
        print("ready", flush=True)
dist.barrier()
