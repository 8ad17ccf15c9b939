"""Rank 0 reads what a server streams, slowly and with a limit of a minute for each piece, as clients of HTTP do."""

import os
import socket
import threading
import time

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
dist.all_reduce(torch.ones(4))


def serve(listener: socket.socket) -> None:
    peer, _ = listener.accept()
    for _ in range(2 * int(os.environ.get("PAUSE", "20"))):
        time.sleep(0.5)
        peer.sendall(b"token")


print("ready", flush=True)
if dist.get_rank() == 0:
    listener = socket.create_server(("127.0.0.1", 0))
    threading.Thread(target=serve, args=(listener,)).start()
    client = socket.create_connection(listener.getsockname(), timeout=60)
    while client.recv(5):
        pass
dist.barrier()
