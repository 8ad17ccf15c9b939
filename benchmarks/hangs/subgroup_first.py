"""One member of a subgroup does not come to its first operation, so no trace says that it is a member.

class: missing
ranks: 1
"""

import time

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
group = dist.new_group([1, 2])
print("ready", flush=True)
if dist.get_rank() == 1:
    time.sleep(3600)  # HERE
elif dist.get_rank() == 2:
    dist.all_reduce(torch.ones(4), group=group)
else:
    time.sleep(3600)
