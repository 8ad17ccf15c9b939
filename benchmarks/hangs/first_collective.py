"""One rank does not come to the first operation.

class: before-first | missing
ranks: 2
"""

import threading

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
print("ready", flush=True)
if dist.get_rank() == 2:
    threading.Semaphore(0).acquire()  # HERE
dist.all_reduce(torch.ones(4))
