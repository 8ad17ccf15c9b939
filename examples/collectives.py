"""What workers can say to each other: broadcast, all-reduce, all-gather, send and receive, and a key-value store.

    clusterddp run examples/collectives.py

Each step is checked, so this is also a quick proof that the network between the hosts carries them all.
"""

import os
from datetime import timedelta

import torch
from torch import distributed as dist
from torch.distributed.elastic.multiprocessing.errors import record


def check(name: str, found: object, expected: object) -> None:
    """Say what came out; it must be what was expected."""
    if found != expected:
        raise AssertionError(f"{name}: {found}, expected {expected}")
    print(f"{name}: {found}")


def broadcast(rank: int, world_size: int, device: torch.device) -> None:
    """One worker's tensor to all."""
    source = world_size - 1
    tensor = torch.tensor([7, 8, 9] if rank == source else [0, 0, 0], device=device)
    dist.broadcast(tensor, src=source)
    check("broadcast", tensor.tolist(), [7, 8, 9])
    settings = [{"lr": 0.1, "name": "any object"} if rank == 0 else None]
    dist.broadcast_object_list(settings, src=0, device=device)  # pickled: only among workers that trust each other
    check("broadcast of an object", settings[0], {"lr": 0.1, "name": "any object"})


def reduce(rank: int, world_size: int, device: torch.device) -> None:
    """Everybody's tensors become one, which all have: what DDP does with gradients."""
    tensor = torch.tensor([1, rank], device=device)
    dist.all_reduce(tensor)
    check("all-reduce, sum", tensor.tolist(), [world_size, sum(range(world_size))])
    tensor = torch.tensor(rank, device=device)
    dist.all_reduce(tensor, op=dist.ReduceOp.MAX)
    check("all-reduce, maximum", tensor.item(), world_size - 1)


def gather(rank: int, world_size: int, device: torch.device) -> None:
    """Everybody's tensor beside the others', by rank."""
    tensors = [torch.empty(2, dtype=torch.int64, device=device) for _ in range(world_size)]
    dist.all_gather(tensors, torch.tensor([rank, rank * rank], device=device))
    check("all-gather", [tensor.tolist() for tensor in tensors], [[other, other**2] for other in range(world_size)])


def ring(rank: int, world_size: int, device: torch.device) -> None:
    """A token from hand to hand: rank 0 sends, each adds one, it comes back to rank 0."""
    token = torch.zeros(1, dtype=torch.int64, device=device)
    if world_size == 1:
        return
    if rank == 0:
        dist.send(token, dst=1)
        dist.recv(token, src=world_size - 1)
    else:
        dist.recv(token, src=rank - 1)
        dist.send(token + 1, dst=(rank + 1) % world_size)
    check("send and receive", token.item(), world_size - 1 if rank == 0 else rank - 1)


def store(rank: int, world_size: int, device: torch.device) -> None:
    """Small things by name, without any collective: rank 0 serves, all read, write and wait."""
    wait = timedelta(seconds=60)
    port = torch.zeros(1, dtype=torch.int64, device=device)
    if rank == 0:  # port 0: the kernel chooses a free one, which the others have to be told
        shelf = dist.TCPStore("0.0.0.0", 0, is_master=True, wait_for_workers=False, timeout=wait)  # noqa: S104
        port[0] = shelf.port
    dist.broadcast(port, src=0)
    if rank != 0:
        shelf = dist.TCPStore(os.environ["MASTER_ADDR"], int(port.item()), is_master=False, timeout=wait)
    shelf.set(f"name of {rank}", f"worker {rank}")
    neighbour = (rank + 1) % world_size
    check("store", shelf.get(f"name of {neighbour}").decode(), f"worker {neighbour}")  # waits until it is there
    shelf.add("counted", 1)
    dist.all_reduce(port)  # all have counted
    check("store, a counter", shelf.add("counted", 0), world_size)
    dist.all_reduce(port)  # all have read: the server may go


@record  # an exception goes to the file from which clusterddp tells who failed first
def main() -> None:
    """All of them, one after another."""
    cuda = torch.cuda.is_available()
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if cuda else torch.device("cpu")
    if cuda:
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if cuda else "gloo")
    for step in (broadcast, reduce, gather, ring, store):
        step(dist.get_rank(), dist.get_world_size(), device)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
