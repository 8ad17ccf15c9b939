"""One rank never leaves a loop, with a full CPU: nobody can tell it from a long computation.

class: missing
ranks: 2
states: hung waiting
"""

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
tensor = torch.ones(4)
dist.all_reduce(tensor)
print("ready", flush=True)
if dist.get_rank() == 2:
    while True:  # HERE
        pass  # HERE
dist.all_reduce(tensor)
