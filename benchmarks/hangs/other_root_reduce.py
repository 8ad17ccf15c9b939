"""One rank reduces to another root. Gloo records no roots.

class: other-root | transport
ranks: 1 | 1 2 | 0 1 | 0 1 2
"""

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
dist.all_reduce(torch.ones(4))
print("ready", flush=True)
dist.reduce(torch.ones(4), dst=1 if dist.get_rank() == 1 else 0)  # HERE
dist.barrier()  # HERE
