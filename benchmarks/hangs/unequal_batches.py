"""One rank has one batch more than the others.

class: other-operation
ranks: 1
ready: 2
"""

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
for batch in range(11 if dist.get_rank() == 1 else 10):
    dist.all_reduce(torch.ones(8))  # HERE
print("ready", flush=True)
dist.barrier()
