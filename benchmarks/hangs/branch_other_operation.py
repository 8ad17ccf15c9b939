"""One rank takes a branch with another operation.

class: other-operation
ranks: 1
"""

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
tensor = torch.ones(4)
dist.all_reduce(tensor)
print("ready", flush=True)
if dist.get_rank() == 1:
    dist.barrier()  # HERE
else:
    dist.all_reduce(tensor)
dist.barrier()
