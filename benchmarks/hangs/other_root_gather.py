"""One rank gathers as if it were the root. Gloo records no roots.

class: other-root | transport
ranks: 2 | 0 2 | 1 2 | 0 1 2
"""

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
dist.all_reduce(torch.ones(4))
root = 2 if dist.get_rank() == 2 else 0
into = [torch.ones(4) for _ in range(3)] if dist.get_rank() == root else None
print("ready", flush=True)
dist.gather(torch.ones(4), into, dst=root)  # HERE
dist.barrier()  # HERE
