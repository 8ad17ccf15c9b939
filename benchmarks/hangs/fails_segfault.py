"""One rank reads address 0.

class: failed
ranks: 1
"""

import ctypes

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
dist.all_reduce(torch.ones(4))
print("ready", flush=True)
if dist.get_rank() == 1:
    ctypes.string_at(0)  # HERE
dist.all_reduce(torch.ones(4))
