"""One rank stops early and gathers its results; the others train.

class: other-operation
ranks: 2
ready: 1
"""

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
for step in range(100):
    dist.all_reduce(torch.ones(8))
    if step == 5 and dist.get_rank() == 2:
        print("ready", flush=True)
        break
dist.all_gather_object([None] * 3, step)  # HERE
