"""One rank is in a C function that holds the interpreter.

class: missing
ranks: 1
"""

import ctypes

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
dist.all_reduce(torch.ones(4))
print("ready", flush=True)
if dist.get_rank() == 1:
    ctypes.PyDLL(None).sleep(3600)  # HERE
dist.all_reduce(torch.ones(4))
