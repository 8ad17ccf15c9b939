"""Rank 0 logs a mean, which is one more all_reduce; its sums are wrong from then on, and it hangs at the end.

class: other-operation
ranks: 0
"""

import torch
import torch.distributed as dist


def mean(loss):
    dist.all_reduce(loss)
    return loss / 3


dist.init_process_group("gloo")
for step in range(3):
    loss = torch.ones(1)
    if step == 2 and dist.get_rank() == 0:
        print("loss", mean(loss))
    print("ready" if step == 2 else "step", flush=True)
    dist.all_reduce(loss)  # HERE
dist.barrier()
