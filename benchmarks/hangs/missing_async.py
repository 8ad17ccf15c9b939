"""One rank does not come to an asynchronous operation, for which the others wait later.

class: missing
ranks: 1
"""

import time

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
tensor = torch.ones(4)
dist.all_reduce(tensor)
print("ready", flush=True)
if dist.get_rank() == 1:
    time.sleep(3600)  # HERE
works = [dist.all_reduce(torch.ones(4), async_op=True) for _ in range(3)]
for work in works:
    work.wait()
