"""One rank's last batch is smaller, and the sizes differ so that gloo aborts that rank.

class: failed
ranks: 2
"""

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
for step in range(4):
    short = step == 3 and dist.get_rank() == 2
    print("ready" if step == 3 else "step", flush=True)
    dist.all_reduce(torch.ones(7 if short else 8))  # HERE
dist.barrier()  # HERE
