"""One rank waits for a child that waits until somebody reads its output.

class: missing
ranks: 1
"""

import subprocess
import sys

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
dist.all_reduce(torch.ones(4))
print("ready", flush=True)
if dist.get_rank() == 1:
    child = subprocess.Popen([sys.executable, "-c", "print('x' * 1000000)"], stdout=subprocess.PIPE)
    child.wait()  # HERE
dist.all_reduce(torch.ones(4))
