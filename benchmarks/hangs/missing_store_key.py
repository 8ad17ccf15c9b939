"""One rank waits for a key of the store that nobody sets.

class: missing
ranks: 2
"""

from datetime import timedelta

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
dist.all_reduce(torch.ones(4))
store = dist.distributed_c10d._get_default_store()
print("ready", flush=True)
if dist.get_rank() == 2:
    store.wait(["never"], timedelta(hours=1))  # HERE
dist.all_reduce(torch.ones(4))
