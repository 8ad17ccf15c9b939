"""FSDP2: one rank sleeps between two steps.

class: missing
ranks: 2
"""

import time

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

dist.init_process_group("gloo")
model = fully_shard(torch.nn.Linear(8, 3), mesh=init_device_mesh("cpu", (3,)))
for step in range(3):
    if step == 2:
        print("ready", flush=True)
        if dist.get_rank() == 2:
            time.sleep(3600)  # HERE
    model(torch.ones(4, 8)).sum().backward()
