"""One trial of a sweep: the number of the trial chooses the learning rate.

Where Slurm owns the machines all trials are one array of jobs, two at a time. It numbers them itself:

    clusterddp run --array 0-3%2 --name lr --nnodes 1 examples/sweep.py
    clusterddp wait lr

Over SSH each trial is a run with a folder of its own. They go on side by side, so give each its GPUs (`--gpus free:2`):

    for trial in 0 1 2 3; do
      clusterddp run --detach --name lr-$trial --workdir lr-$trial examples/sweep.py --trial $trial
    done
    clusterddp wait lr-0 lr-1 lr-2 lr-3
"""

import argparse
import os

import torch
import torch.distributed.nn  # before a group is made: docs/examples.md, "the end of a worker"
from torch import distributed as dist
from torch.nn.parallel import DistributedDataParallel

RATES = (0.001, 0.01, 0.1, 1.0)


def main() -> None:
    """Train with the trial's learning rate; rank 0 prints the final loss."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--trial", type=int, default=os.environ.get("SLURM_ARRAY_TASK_ID", "0"))
    parser.add_argument("--steps", type=int, default=50)
    args = parser.parse_args()
    cuda = torch.cuda.is_available()
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if cuda else torch.device("cpu")
    if cuda:
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if cuda else "gloo")
    torch.manual_seed(dist.get_rank())
    model = DistributedDataParallel(torch.nn.Linear(1, 1).to(device))
    optimizer = torch.optim.SGD(model.parameters(), lr=RATES[args.trial])
    for _ in range(args.steps):
        x = torch.randn(64, 1, device=device)
        loss = torch.nn.functional.mse_loss(model(x), 3 * x + 1)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    if dist.get_rank() == 0:
        print(f"trial {args.trial} rate {RATES[args.trial]} loss {loss.item():.6f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
