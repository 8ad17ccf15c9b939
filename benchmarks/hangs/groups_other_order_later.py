"""Two ranks use two groups in different orders, after both were used well once.

class: other-order
ranks: 0 1 | 0 1 2
"""

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
rank = dist.get_rank()
pair, all_ranks = dist.new_group([0, 1]), dist.new_group([0, 1, 2])
if rank < 2:
    dist.all_reduce(torch.ones(4), group=pair)
dist.all_reduce(torch.ones(4), group=all_ranks)
print("ready", flush=True)
if rank == 0:
    dist.all_reduce(torch.ones(4), group=pair)  # HERE
dist.all_reduce(torch.ones(4), group=all_ranks)  # HERE
if rank == 1:
    dist.all_reduce(torch.ones(4), group=pair)
