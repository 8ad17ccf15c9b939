"""Rank 0 evaluates by asking a slow server, with hardly any CPU: a little is read every half second."""

import os
import socket
import threading
import time

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
dist.all_reduce(torch.ones(4))
pieces = 2 * int(os.environ.get("PAUSE", "20"))
print("ready", flush=True)
here, there = socket.socketpair()
if dist.get_rank() == 0:
    threading.Thread(target=lambda: [(time.sleep(0.5), there.sendall(b"token")) for _ in range(pieces)]).start()
    for _ in range(pieces):
        here.recv(5)
dist.barrier()
