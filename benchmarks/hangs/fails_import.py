"""One rank cannot import a module.

class: failed
ranks: 1
"""

import importlib

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
dist.all_reduce(torch.ones(4))
print("ready", flush=True)
if dist.get_rank() == 1:
    importlib.import_module("no_such_module")  # HERE
dist.all_reduce(torch.ones(4))
