"""Rank 0 alone saves a distributed checkpoint, which all ranks have to save.

class: other-operation
ranks: 0
"""

import tempfile

import torch
import torch.distributed as dist
import torch.distributed.checkpoint

dist.init_process_group("gloo")
dist.all_reduce(torch.ones(4))
print("ready", flush=True)
if dist.get_rank() == 0:
    dist.checkpoint.save({"weight": torch.ones(4)}, checkpoint_id=tempfile.mkdtemp())  # HERE
dist.all_reduce(torch.ones(4))
