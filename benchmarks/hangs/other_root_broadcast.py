"""One rank broadcasts from another root. Gloo records no roots.

class: other-root | transport
ranks: 1 | 1 2 | 0 1 | 0 1 2
"""

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
dist.broadcast(torch.ones(4), src=0)
print("ready", flush=True)
dist.broadcast(torch.ones(4), src=2 if dist.get_rank() == 1 else 0)  # HERE
dist.barrier()  # HERE
