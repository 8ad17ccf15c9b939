"""A model too large for one GPU: FSDP2 keeps a part of it on each worker, and checkpoints that any number can load.

    clusterddp run examples/fsdp.py --steps 20 --checkpoint /shared/fsdp
    clusterddp run --nnodes 1 examples/fsdp.py --steps 40 --checkpoint /shared/fsdp

Each worker writes its own part, and reads the parts it needs: the folder must be one that all of them see. Needs
torch 2.6. (Where every node has only its own disk, see trainer.py.)
"""

import argparse
import os
import sys
from pathlib import Path

import torch
from torch import distributed as dist
from torch import nn
from torch.distributed import checkpoint
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.elastic.multiprocessing.errors import record
from torch.distributed.fsdp import fully_shard


class Training:
    """Model, optimizer and step as one thing that torch.distributed.checkpoint can save and load."""

    def __init__(self, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        self.model, self.optimizer, self.step = model, optimizer, 0

    def state_dict(self) -> dict:
        """Names to values; sharded tensors know which part of the whole they are."""
        model, optimizer = get_state_dict(self.model, self.optimizer)
        return {"model": model, "optimizer": optimizer, "step": self.step}

    def load_state_dict(self, state: dict) -> None:
        """What was read, already cut for this number of workers."""
        set_state_dict(self.model, self.optimizer, model_state_dict=state["model"], optim_state_dict=state["optimizer"])
        self.step = state["step"]


def make_model(device: torch.device) -> nn.Module:
    """Each layer is sharded by itself: only one of them is whole on a worker at a time."""
    torch.manual_seed(0)  # the same model everywhere
    layers = [nn.Sequential(nn.Linear(64, 64), nn.Tanh()) for _ in range(4)]
    model = nn.Sequential(*layers, nn.Linear(64, 1)).to(device)
    mesh = init_device_mesh(device.type, (dist.get_world_size(),))
    for layer in layers:
        fully_shard(layer, mesh=mesh)
    return fully_shard(model, mesh=mesh)


def train_step(training: Training, size: int, device: torch.device) -> float:
    """One global batch, the same for any number of workers; its mean loss."""
    rank, world_size = dist.get_rank(), dist.get_world_size()
    x = torch.rand(size, 64, generator=torch.Generator().manual_seed(training.step))[rank::world_size].to(device)
    y = x.sum(1, keepdim=True).sin()
    loss = (training.model(x) - y).square().sum() / size
    (loss * world_size).backward()  # FSDP divides the sum over the workers by their number
    training.optimizer.step()
    training.optimizer.zero_grad()
    training.step += 1
    total = loss.detach()
    dist.all_reduce(total)
    return total.item()


def save(folder: Path, training: Training) -> None:
    """Every worker writes its part into a new folder; only when all have, ``latest`` names it."""
    name = f"step-{training.step}"
    checkpoint.save({"training": training}, checkpoint_id=folder / name)
    if dist.get_rank() == 0:
        (folder / "latest.new").write_text(name)
        (folder / "latest.new").replace(folder / "latest")


def load(folder: Path, training: Training) -> None:
    """Every worker reads what it needs of the parts, however many workers wrote them."""
    latest = folder / "latest"
    name = [latest.read_text() if dist.get_rank() == 0 and latest.exists() else None]
    dist.broadcast_object_list(name, src=0)  # so that all read the same
    if name[0]:
        checkpoint.load({"training": training}, checkpoint_id=folder / name[0])
        if dist.get_rank() == 0:
            print(f"resumed after step {training.step}, now {dist.get_world_size()} workers")


@record  # an exception goes to the file from which clusterddp tells who failed first
def main() -> None:
    """Load what is there, train up to ``--steps``, save."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=20, help="in all, those of earlier runs included")
    parser.add_argument("--global-batch", type=int, default=32)
    parser.add_argument("--checkpoint", type=Path, default=Path("checkpoint-fsdp"))
    args = parser.parse_args()
    cuda = torch.cuda.is_available()
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if cuda else torch.device("cpu")
    if cuda:
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if cuda else "gloo")
    model = make_model(device)
    training = Training(model, torch.optim.AdamW(model.parameters(), lr=1e-2))
    rank = dist.get_rank()
    load(args.checkpoint, training)
    own = sum(parameter.to_local().numel() for parameter in model.parameters())
    print(f"rank {rank} keeps {own} of {sum(parameter.numel() for parameter in model.parameters())} parameters")
    while training.step < args.steps:
        loss = train_step(training, args.global_batch, device)
        if rank == 0:
            print(f"step {training.step} loss {loss:.6f}")
    save(args.checkpoint, training)
    dist.destroy_process_group()
    # fully_shard keeps the group, and an interpreter that goes down beside its threads may abort (torch 2.13).
    sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    main()
