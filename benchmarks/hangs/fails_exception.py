"""One rank raises.

class: failed
ranks: 1
"""

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
dist.all_reduce(torch.ones(4))
print("ready", flush=True)
if dist.get_rank() == 1:
    raise ValueError("loss is NaN")  # HERE
dist.all_reduce(torch.ones(4))
