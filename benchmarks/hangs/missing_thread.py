"""One rank's script has ended, but a thread keeps its process.

class: missing
ranks: 1
"""

import threading
import time

import torch
import torch.distributed as dist


def upload():
    time.sleep(3600)  # HERE


dist.init_process_group("gloo")
dist.all_reduce(torch.ones(4))
print("ready", flush=True)
if dist.get_rank() == 1:
    threading.Thread(target=upload).start()
else:
    dist.all_reduce(torch.ones(4))
