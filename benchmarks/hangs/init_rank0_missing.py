"""Rank 0, whose store the others wait for, loads a file before init_process_group.

class: before-first
ranks: 0
"""

import os
import socket

import torch.distributed as dist

print("ready", flush=True)
if os.environ["RANK"] == "0":
    socket.create_server(("127.0.0.1", 0)).accept()  # HERE
dist.init_process_group("gloo")
