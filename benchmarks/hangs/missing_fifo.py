"""One rank opens a FIFO that nobody writes.

class: missing
ranks: 0
"""

import os
import tempfile

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
dist.all_reduce(torch.ones(4))
path = tempfile.mkdtemp() + "/fifo"
os.mkfifo(path)
print("ready", flush=True)
if dist.get_rank() == 0:
    open(path).read()  # HERE
dist.all_reduce(torch.ones(4))
