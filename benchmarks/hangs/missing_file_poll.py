"""One rank looks a hundred times a second whether a file is there that nobody writes.

class: missing
ranks: 1
"""

import time
from pathlib import Path

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
dist.all_reduce(torch.ones(4))
print("ready", flush=True)
if dist.get_rank() == 1:
    while not Path("best-checkpoint.pt").exists():
        time.sleep(0.01)  # HERE
dist.all_reduce(torch.ones(4))
