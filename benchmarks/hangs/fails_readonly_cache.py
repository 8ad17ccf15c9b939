"""The cache of one rank is read-only, and it cannot write there.

class: failed
ranks: 1
"""

import tempfile
from pathlib import Path

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
dist.all_reduce(torch.ones(4))
cache = "/sys" if dist.get_rank() == 1 else tempfile.mkdtemp()
print("ready", flush=True)
Path(cache, "step.bin").write_bytes(bytes(8))  # HERE
dist.all_reduce(torch.ones(4))
