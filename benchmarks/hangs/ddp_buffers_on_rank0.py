"""DDP: rank 0 alone evaluates with the wrapped model, whose forward pass broadcasts its buffers.

class: other-operation
ranks: 0
"""

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
net = torch.nn.Sequential(torch.nn.Linear(8, 4), torch.nn.BatchNorm1d(4))
model = torch.nn.parallel.DistributedDataParallel(net)
model(torch.ones(4, 8)).sum().backward()
print("ready", flush=True)
if dist.get_rank() == 0:
    model(torch.ones(4, 8))  # HERE
dist.barrier()
dist.barrier()
