"""The smallest DDP job: a linear model learns y = 3x + 1 on every worker at once.

    clusterddp run examples/toy_ddp.py --steps 20

Gloo on CPU hosts, NCCL where each worker has a GPU; nothing to set.
"""

import argparse
import os
import socket

import torch
import torch.distributed.nn  # before a group is made: docs/examples.md, "the end of a worker"
from torch import distributed as dist
from torch.nn.parallel import DistributedDataParallel


def train(steps: int, rank: int, device: torch.device) -> None:
    """So many steps on random data."""
    torch.manual_seed(rank)  # every worker sees data of its own
    model = DistributedDataParallel(torch.nn.Linear(1, 1).to(device))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(steps):
        x = torch.randn(64, 1, device=device)
        loss = torch.nn.functional.mse_loss(model(x), 3 * x + 1)
        optimizer.zero_grad()
        loss.backward()  # gradients are averaged over all workers here
        optimizer.step()
        print(f"step {step} loss {loss.item():.4f}")


def main() -> None:
    """Train, and print what a worker would."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=10)
    args, rest = parser.parse_known_args()

    cuda = torch.cuda.is_available()
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if cuda else torch.device("cpu")
    if cuda:
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if cuda else "gloo")
    rank, world_size = dist.get_rank(), dist.get_world_size()
    print(f"rank {rank} of {world_size} on {socket.gethostname()} with {device}, arguments {rest}")

    train(args.steps, rank, device)
    # The last step, when no model holds the group any more: docs/examples.md, "the end of a worker".
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
