"""One rank asks the store a hundred times a second for a key that nobody sets, while a thread of it watches the memory.

class: missing
ranks: 1
"""

import os
import threading
import time

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
dist.all_reduce(torch.ones(4))
store = dist.TCPStore("127.0.0.1", 0, 1, is_master=True)


def watch() -> None:
    while time.sleep(0.05) is None:
        os.times()


if dist.get_rank() == 1:
    threading.Thread(target=watch, daemon=True).start()
print("ready", flush=True)
while dist.get_rank() == 1 and not store.check(["the best epoch"]):  # HERE
    time.sleep(0.01)  # HERE
dist.all_reduce(torch.ones(4))
