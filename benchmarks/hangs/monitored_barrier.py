"""One rank does not come to monitored_barrier, which gloo makes of sends and receives.

class: missing | point-to-point
ranks: 1
"""

import time
from datetime import timedelta

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
dist.all_reduce(torch.ones(4))
print("ready", flush=True)
if dist.get_rank() == 1:
    time.sleep(3600)  # HERE
dist.monitored_barrier(timeout=timedelta(hours=1))
