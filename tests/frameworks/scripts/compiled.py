"""torch.compile with Inductor and its pool of compile workers, under DDP."""

# mypy: ignore-errors

import hashlib
import os

import torch
import torch.distributed as dist
from torch._inductor import config
from torch._inductor.async_compile import AsyncCompile

if __name__ == "__main__":
    config.compile_threads = 2
    dist.init_process_group("gloo")
    torch.manual_seed(1)
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(8, 1))
    step = torch.compile(lambda x: torch.nn.functional.gelu(model(x)).square().sum())
    loss = step(torch.ones(4, 8))
    loss.backward()
    grads = b"".join(one.grad.numpy().tobytes() for one in model.parameters())
    pool = AsyncCompile.process_pool()  # its workers are processes of the worker's own
    theirs = pool.submit(os.getpid).result(timeout=120)
    print(
        "result",
        dist.get_rank(),
        loss.item(),
        type(pool).__name__,
        theirs != os.getpid(),
        hashlib.sha256(grads).hexdigest(),
    )
    dist.destroy_process_group()
