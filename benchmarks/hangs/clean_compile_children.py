"""One rank waits for compilers, processes of their own; the others wait for it."""

import subprocess
import sys

import torch
import torch.distributed as dist

BUSY = "import os, time\nend = time.time() + float(os.environ.get('PAUSE', '20'))\nwhile time.time() < end: pass"
dist.init_process_group("gloo")
dist.all_reduce(torch.ones(4))
print("ready", flush=True)
if dist.get_rank() == 1:
    subprocess.run([sys.executable, "-c", BUSY], check=True)
dist.all_reduce(torch.ones(4))
