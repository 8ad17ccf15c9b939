"""One rank writes to a pipe that nobody reads.

class: missing
ranks: 1
"""

import os

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
dist.all_reduce(torch.ones(4))
reader, writer = os.pipe()
print("ready", flush=True)
if dist.get_rank() == 1:
    os.write(writer, bytes(1 << 20))  # HERE
dist.all_reduce(torch.ones(4))
