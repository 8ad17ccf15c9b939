"""FSDP2: one rank has a batch more than the others, which wait in a barrier.

class: other-operation
ranks: 1
ready: 2
"""

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

dist.init_process_group("gloo")
model = fully_shard(torch.nn.Linear(8, 3), mesh=init_device_mesh("cpu", (3,)))
for batch in range(3 if dist.get_rank() == 1 else 2):
    model(torch.ones(4, 8)).sum().backward()  # HERE
print("ready", flush=True)
dist.barrier()
