"""Rank 0 waits for a thread that uploads a checkpoint, slowly; the others wait in a barrier."""

import os
import socket
import threading
import time

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
dist.all_reduce(torch.ones(4))
here, there = socket.socketpair()
end = time.monotonic() + float(os.environ.get("PAUSE", "20"))


def upload():
    while time.monotonic() < end:
        here.sendall(bytes(100_000))
        there.recv(100_000, socket.MSG_WAITALL)
        time.sleep(0.1)


print("ready", flush=True)
if dist.get_rank() == 0:
    thread = threading.Thread(target=upload)
    thread.start()
    thread.join()
dist.barrier()
