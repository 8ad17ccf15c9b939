"""Three ranks wait in a ring: each in a group whose other member is in the next one.

class: other-order
ranks: 0 1 2
"""

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
rank = dist.get_rank()
groups = [dist.new_group([0, 1]), dist.new_group([1, 2]), dist.new_group([0, 2])]
mine = [groups[rank], groups[rank - 1]]
for group in sorted(mine, key=groups.index):
    dist.all_reduce(torch.ones(4), group=group)
print("ready", flush=True)
for group in mine:
    dist.all_reduce(torch.ones(4), group=group)  # HERE
