"""One rank has a cold cache, in which a build that was killed has left its lock behind: it waits for that build.

class: missing
ranks: 1
"""

import tempfile

import torch
import torch.distributed as dist
from torch.utils.file_baton import FileBaton

dist.init_process_group("gloo")
dist.all_reduce(torch.ones(4))
lock = f"{tempfile.mkdtemp()}/lock"
if dist.get_rank() == 1:
    FileBaton(lock).try_acquire()
print("ready", flush=True)
build = FileBaton(lock)
if not build.try_acquire():
    build.wait()  # HERE
dist.all_reduce(torch.ones(4))
