"""One rank has a cold cache, and torch compiles for it; the others have a warm one and wait."""

import os
import tempfile
import time

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
dist.all_reduce(torch.ones(4))
os.environ["TORCHINDUCTOR_CACHE_DIR"] = tempfile.mkdtemp()
print("ready", flush=True)
end, size = time.monotonic() + float(os.environ.get("PAUSE", "20")), 8
while dist.get_rank() == 1 and time.monotonic() < end:
    torch._dynamo.reset()
    torch.compile(lambda x: (x.sin() + x.cos()).sum(), dynamic=False)(torch.ones(size))
    size += 1
dist.all_reduce(torch.ones(4))
