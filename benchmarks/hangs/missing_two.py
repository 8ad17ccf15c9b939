"""Two ranks of three do not come, at different lines.

class: missing
ranks: 1 2
"""

import queue
import time

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
dist.all_reduce(torch.ones(4))
print("ready", flush=True)
if dist.get_rank() == 1:
    queue.Queue().get()  # HERE
if dist.get_rank() == 2:
    time.sleep(3600)  # HERE
dist.all_gather_object([None] * 3, "done")
