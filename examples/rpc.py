"""Functions called on other workers: rank 0 spreads work over the others and keeps an object on one of them.

    clusterddp run examples/rpc.py

torch.distributed.rpc pickles what it sends: only among workers that trust each other. It needs no process group.
"""

import os
import warnings

import torch
from torch.distributed import rpc
from torch.distributed.elastic.multiprocessing.errors import record


class Counter:
    """Lives on one worker; others hold a reference to it."""

    def __init__(self) -> None:
        self.total = 0

    def add(self, number: int) -> int:
        """The sum so far."""
        self.total += number
        return self.total


def part_of_pi(first: int, last: int) -> torch.Tensor:
    """Some terms of Leibniz' series, on the worker that is asked."""
    number = torch.arange(first, last, dtype=torch.float64)
    return (4 * (1 - 2 * (number % 2)) / (2 * number + 1)).sum()


def lead(world_size: int, terms: int = 1_000_000) -> None:
    """What rank 0 does; the others only answer."""
    share = terms // world_size
    asked = [
        rpc.rpc_async(f"worker{rank}", part_of_pi, (rank * share, (rank + 1) * share)) for rank in range(world_size)
    ]
    pi = sum(answer.wait() for answer in asked)
    print(f"pi is about {pi.item():.4f}, by {world_size} workers")
    counter = rpc.remote(f"worker{world_size - 1}", Counter)
    for number in (1, 2, 3):
        total = counter.rpc_sync().add(number)
    print(f"the counter on {counter.owner().name} says {total}")


@record  # an exception goes to the file from which clusterddp tells who failed first
def main() -> None:
    """Join, work, and leave when all work is done."""
    rank, world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    warnings.filterwarnings("ignore", message="You are using a Backend")  # torch's own rpc does, in 2.13
    rpc.init_rpc(f"worker{rank}", rank=rank, world_size=world_size)
    if rank == 0:
        lead(world_size)
    rpc.shutdown()  # waits for everybody's calls


if __name__ == "__main__":
    main()
