"""One rank's tensor is a little longer than the others': some ranks get wrong sums, and some hang.

class: other-shape
ranks: 1
"""

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
dist.all_reduce(torch.ones(4))
print("ready", flush=True)
dist.all_reduce(torch.ones(5 if dist.get_rank() == 1 else 4))  # HERE
dist.barrier()  # HERE
