"""One rank leaves out a step with a bad loss, and is one operation ahead of the others in the program.

class: other-operation
ranks: 1
ready: 1
"""

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
for step in range(4):
    loss = torch.ones(1)
    if step == 2 and dist.get_rank() == 1:
        continue
    dist.all_reduce(loss)
print("ready", flush=True)
results = [torch.ones(1) for _ in range(3)]
dist.all_gather(results, torch.ones(1))  # HERE
