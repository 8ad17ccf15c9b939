"""A pipeline whose middle stage sleeps: the last stage waits for it in a receive, the first in a send.

class: missing | point-to-point
ranks: 1
"""

import time

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
rank = dist.get_rank()
for batch in range(3):
    if batch == 2:
        print("ready", flush=True)
        if rank == 1:
            time.sleep(3600)  # HERE
    if rank:
        dist.recv(torch.ones(4), src=rank - 1)
    if rank < 2:
        dist.send(torch.ones(4), dst=rank + 1)
dist.barrier()
