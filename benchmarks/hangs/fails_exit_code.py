"""One rank ends with exit code 7, without a word.

class: failed
ranks: 1
"""

import os

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
dist.all_reduce(torch.ones(4))
print("ready", flush=True)
if dist.get_rank() == 1:
    os._exit(7)  # HERE
dist.all_reduce(torch.ones(4))
