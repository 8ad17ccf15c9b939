"""One rank reads a large file before init_process_group; the others wait for it there."""

import os
import time

import torch.distributed as dist

print("ready", flush=True)
if os.environ["RANK"] == "1":
    end = time.monotonic() + float(os.environ.get("PAUSE", "20"))
    while time.monotonic() < end:
        with open("/dev/zero", "rb") as file:
            file.read(8 << 20)
dist.init_process_group("gloo")
