"""One rank reads from a server that does not answer.

class: missing
ranks: 1
"""

import socket
import urllib.request

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
dist.all_reduce(torch.ones(4))
server = socket.create_server(("127.0.0.1", 0))
print("ready", flush=True)
if dist.get_rank() == 1:
    urllib.request.urlopen(f"http://127.0.0.1:{server.getsockname()[1]}/")  # HERE
dist.all_reduce(torch.ones(4))
