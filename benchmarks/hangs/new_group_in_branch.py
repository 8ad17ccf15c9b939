"""A member leaves new_group out, in a branch, and goes on to a barrier.

class: before-first | missing | other-operation
ranks: 2
"""

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
dist.all_reduce(torch.ones(4))
print("ready", flush=True)
if dist.get_rank() < 2:
    group = dist.new_group([0, 1, 2])
dist.barrier()  # HERE
