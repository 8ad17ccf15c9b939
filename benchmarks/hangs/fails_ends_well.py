"""One rank ends with exit code 0 while the others need it.

class: failed
ranks: 1
"""

import sys

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
dist.all_reduce(torch.ones(4))
print("ready", flush=True)
if dist.get_rank() == 1:
    sys.exit(0)  # HERE
dist.all_reduce(torch.ones(4))
