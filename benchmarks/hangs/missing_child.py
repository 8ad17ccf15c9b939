"""One rank waits for a child process that does not end.

class: missing
ranks: 0
"""

import subprocess

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
tensor = torch.ones(4)
dist.all_reduce(tensor)
print("ready", flush=True)
if dist.get_rank() == 0:
    subprocess.run(["sleep", "3600"])  # HERE
dist.all_reduce(tensor)
