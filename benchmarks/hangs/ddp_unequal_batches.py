"""DDP: one rank has a batch more than the others, which wait in a barrier.

class: other-operation
ranks: 1
ready: 2
"""

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(8, 1))
for batch in range(6 if dist.get_rank() == 1 else 5):
    model(torch.ones(4, 8)).sum().backward()  # HERE
print("ready", flush=True)
dist.barrier()
