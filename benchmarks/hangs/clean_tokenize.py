"""Rank 0 prepares data with a pool of processes; the others wait in a barrier."""

import multiprocessing
import os
import time

import torch
import torch.distributed as dist


def tokenize(seconds):
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        "some text to split".split()


dist.init_process_group("gloo")
dist.all_reduce(torch.ones(4))
print("ready", flush=True)
if dist.get_rank() == 0:
    with multiprocessing.get_context("fork").Pool(2) as pool:
        pool.map(tokenize, [float(os.environ.get("PAUSE", "20")) / 2] * 4, chunksize=1)
dist.barrier()
