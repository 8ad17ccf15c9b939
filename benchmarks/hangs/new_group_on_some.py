"""One member does not come to new_group.

class: before-first | missing
ranks: 2
"""

import time

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
dist.all_reduce(torch.ones(4))
print("ready", flush=True)
if dist.get_rank() == 2:
    time.sleep(3600)  # HERE
group = dist.new_group([0, 1, 2])
