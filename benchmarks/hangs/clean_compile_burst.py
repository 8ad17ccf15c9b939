"""Every rank compiles in several processes at once, and one rank has much more to compile."""

import os
import subprocess
import sys
import time

import torch
import torch.distributed as dist

COMPILES = "for size in range(40): compile('x = 1\\n' * 1000 * size, 'step', 'exec')"
dist.init_process_group("gloo")
dist.all_reduce(torch.ones(4))
print("ready", flush=True)
end = time.monotonic() + float(os.environ.get("PAUSE", "20"))
while True:
    for child in [subprocess.Popen([sys.executable, "-c", COMPILES]) for _ in range(4)]:
        child.wait()
    if dist.get_rank() != 2 or time.monotonic() > end:
        break
dist.all_reduce(torch.ones(4))
