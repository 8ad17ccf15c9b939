"""Every rank compiles in several processes at once; one of those of one rank never ends.

class: missing
ranks: 2
"""

import subprocess
import sys

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
dist.all_reduce(torch.ones(4))
print("ready", flush=True)
compiles = "compile('x = 1\\n' * 10000, 'step', 'exec')"
stuck = "import threading; threading.Event().wait()"
burst = [compiles] * 4 + [stuck] * (dist.get_rank() == 2)
for child in [subprocess.Popen([sys.executable, "-c", code]) for code in burst]:
    child.wait()  # HERE
dist.all_reduce(torch.ones(4))
