"""DDP: one rank leaves out a step's synchronisation.

class: other-operation
ranks: 1
ready: 1
"""

import contextlib

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(8, 1))
for step in range(4):
    alone = step == 3 and dist.get_rank() == 1
    with model.no_sync() if alone else contextlib.nullcontext():
        model(torch.ones(4, 8)).sum().backward()
print("ready", flush=True)
dist.barrier()  # HERE
