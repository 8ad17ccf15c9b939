"""One rank reads from a file server that does not answer: the kernel holds it.

class: missing
ranks: 1
mounts: /tmp/dead
"""

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
dist.all_reduce(torch.ones(4))
print("ready", flush=True)
if dist.get_rank() == 1:
    open("/tmp/dead/train.bin")  # HERE
dist.all_reduce(torch.ones(4))
