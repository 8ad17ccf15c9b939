"""One rank receives what nobody sends.

class: point-to-point | missing
ranks: 2
"""

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
dist.all_reduce(torch.ones(4))
print("ready", flush=True)
if dist.get_rank() == 2:
    dist.recv(torch.ones(4), src=0)  # HERE
dist.barrier()
