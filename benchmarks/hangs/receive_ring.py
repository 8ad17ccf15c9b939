"""Every rank receives from its neighbour before it sends: nobody begins.

class: point-to-point
ranks: 0 1 2
"""

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
dist.all_reduce(torch.ones(4))
rank = dist.get_rank()
print("ready", flush=True)
dist.recv(torch.ones(4), src=(rank - 1) % 3)  # HERE
dist.send(torch.ones(4), dst=(rank + 1) % 3)
