"""One rank does not come to init_process_group.

class: before-first
ranks: 1
"""

import os
import time

import torch.distributed as dist

print("ready", flush=True)
if os.environ["RANK"] == "1":
    time.sleep(3600)  # HERE
dist.init_process_group("gloo")
