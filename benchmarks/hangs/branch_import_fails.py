"""One rank cannot import a package, goes on without it, and takes a branch that gathers less.

class: other-operation
ranks: 1
"""

import sys

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
dist.all_reduce(torch.ones(4))
if dist.get_rank() == 1:
    sys.path_importer_cache.clear()
    sys.modules["json.tool"] = None  # as if it were not installed there
print("ready", flush=True)
try:
    import json.tool

    dist.all_gather_object([None] * 3, "version")
except ImportError:
    pass
dist.all_reduce(torch.ones(4))  # HERE
