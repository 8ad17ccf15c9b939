"""Quick steps, without a pause."""

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(8, 1))
for step in range(1_000_000):
    if step == 1:
        print("ready", flush=True)
    model(torch.ones(4, 8)).sum().backward()
