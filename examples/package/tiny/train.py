"""Train by a configuration; started as a module, so that the package's other modules are found."""

import argparse
import json
import os
from pathlib import Path

import torch
import torch.distributed.nn  # before a group is made: docs/examples.md, "the end of a worker"
from torch import distributed as dist
from torch.distributed.elastic.multiprocessing.errors import record
from torch.nn.parallel import DistributedDataParallel

from tiny.model import make_model


def train(config: dict, device: torch.device) -> float:
    """Run all training steps; return the last loss, averaged over all workers."""
    torch.manual_seed(config["seed"])  # the same model everywhere
    model = DistributedDataParallel(make_model(config["width"], config["depth"]).to(device))
    optimizer = torch.optim.AdamW(model.parameters(), lr=config["lr"])
    torch.manual_seed(config["seed"] + 1 + dist.get_rank())  # and other samples for each
    for _ in range(config["steps"]):
        x = torch.rand(config["batch"], 8, device=device)
        loss = torch.nn.functional.mse_loss(model(x), x.sum(1, keepdim=True))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    total = loss.detach()
    dist.all_reduce(total)
    return total.item() / dist.get_world_size()


@record  # an exception goes to the file from which clusterddp tells who failed first
def main() -> None:
    """Read the configuration, train, and let rank 0 write the results."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--config", type=Path, required=True)
    args = parser.parse_args()
    config = json.loads(args.config.read_text(encoding="utf-8"))
    cuda = torch.cuda.is_available()
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if cuda else torch.device("cpu")
    if cuda:
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if cuda else "gloo")
    loss = train(config, device)
    if dist.get_rank() == 0:
        print(f"{args.config.stem}: loss {loss:.4f} after {config['steps']} steps")
        Path("results").mkdir(exist_ok=True)
        Path("results", args.config.name).write_text(json.dumps({**config, "loss": loss}), encoding="utf-8")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
