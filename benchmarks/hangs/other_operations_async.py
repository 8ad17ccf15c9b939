"""One rank starts two asynchronous operations in the other order.

class: other-operation
ranks: 1
"""

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
dist.all_reduce(torch.ones(4))
starts = [
    lambda: dist.all_reduce(torch.ones(4), async_op=True),
    lambda: dist.all_gather([torch.ones(4) for _ in range(3)], torch.ones(4), async_op=True),
]
print("ready", flush=True)
works = [start() for start in (reversed(starts) if dist.get_rank() == 1 else starts)]
for work in works:
    work.wait()  # HERE
