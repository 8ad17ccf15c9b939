"""One rank is killed.

class: failed
ranks: 1
"""

import os
import signal

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
dist.all_reduce(torch.ones(4))
print("ready", flush=True)
if dist.get_rank() == 1:
    os.kill(os.getpid(), signal.SIGKILL)  # HERE
dist.all_reduce(torch.ones(4))
