"""One rank takes a lock that it holds already.

class: missing
ranks: 1
"""

import threading

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
tensor = torch.ones(4)
dist.all_reduce(tensor)
lock = threading.Lock()
print("ready", flush=True)
if dist.get_rank() == 1:
    with lock:
        lock.acquire()  # HERE
dist.all_reduce(tensor)
