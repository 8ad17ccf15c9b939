"""One rank sends what nobody receives.

class: point-to-point | missing
ranks: 1
"""

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
dist.all_reduce(torch.ones(4))
print("ready", flush=True)
if dist.get_rank() == 1:
    dist.send(torch.ones(1000000), dst=0)  # HERE
dist.barrier()
