"""One rank sleeps instead of joining the others.

class: missing
ranks: 1
"""

import time

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
tensor = torch.ones(4)
for step in range(4):
    if step == 3:
        print("ready", flush=True)
        if dist.get_rank() == 1:
            time.sleep(3600)  # HERE
    dist.all_reduce(tensor)
