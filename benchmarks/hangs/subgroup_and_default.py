"""A member of a subgroup goes on to the default group's operation, and leaves out the subgroup's.

class: missing | other-order
ranks: 1 | 1 2 | 0 1 2
"""

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
group = dist.new_group([1, 2])
if dist.get_rank():
    dist.all_reduce(torch.ones(4), group=group)
print("ready", flush=True)
if dist.get_rank() == 2:
    dist.all_reduce(torch.ones(4), group=group)  # HERE
dist.all_reduce(torch.ones(4))  # HERE
