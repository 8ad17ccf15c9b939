"""DDP: one rank's loop waits for data; the others are in their backward pass.

class: missing
ranks: 2
"""

import queue

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(8, 1))
batches = queue.Queue()
for batch in range(9 if dist.get_rank() != 2 else 4):
    batches.put(torch.ones(4, 8))
for step in range(9):
    if step == 4:
        print("ready", flush=True)
    model(batches.get()).sum().backward()  # HERE
