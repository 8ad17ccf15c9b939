"""A trainer that may be stopped at any step and goes on as if nothing had happened, on as many workers as there are.

    clusterddp run examples/trainer.py --epochs 3
    clusterddp stop                              # or Ctrl-C, a time limit, a power cut
    clusterddp run examples/trainer.py --epochs 3

What makes that true:

- A sample's turn depends on the seed and the epoch alone: one permutation of all samples, cut into global batches.
  A checkpoint remembers how many samples are done, so none is skipped or seen twice, whatever the world size.
- The global batch is constant: fewer workers take more micro-batches each, and gradients are those of the whole batch.
- A checkpoint is written beside the old one and then renamed: a crash leaves the old or the new, never half of one.
  Each node keeps its own copy; the newest anywhere is broadcast, so local disks suffice and any one may be lost.
- SIGTERM is agreed upon: all workers save after the same step and exit with 0. So is SIGUSR1, Slurm's notice before a
  time limit: with ``--relaunch`` the job is requeued then, and goes on.
"""

import argparse
import io
import os
import signal
from contextlib import nullcontext
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed.nn  # before a group is made: docs/examples.md, "the end of a worker"
from torch import distributed as dist
from torch.distributed.elastic.multiprocessing.errors import record
from torch.nn.parallel import DistributedDataParallel

stopping = False


def stop(*_: object) -> None:
    """SIGTERM or SIGUSR1: end after this step, when all know it."""
    global stopping  # noqa: PLW0603 - a signal handler has no other way to tell
    stopping = True


def write(path: Path, data: bytes) -> None:
    """The file is the old one or the new one at every moment, also when the power goes."""
    temporary = path.with_name(f".{path.name}.{os.environ['RANK']}")
    with temporary.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)
    folder = os.open(path.parent, os.O_RDONLY)
    os.fsync(folder)  # the rename itself
    os.close(folder)


def save(folder: Path, state: dict) -> None:
    """Write this node's copy, point ``latest`` to it, and keep the one before."""
    folder.mkdir(parents=True, exist_ok=True)
    name = f"{state['seen']:012d}.pt"
    buffer = io.BytesIO()
    torch.save(state, buffer)
    write(folder / name, buffer.getvalue())
    write(folder / "latest", name.encode())
    for old in sorted(folder.glob("*.pt"))[:-2]:
        old.unlink(missing_ok=True)


def load(folder: Path, device: torch.device) -> dict | None:
    """The newest checkpoint that any node has, on every worker; None when there is none."""
    latest = folder / "latest"
    mine = folder / latest.read_text() if latest.exists() else None
    seen = torch.tensor(int(mine.stem) if mine else -1, device=device)
    all_seen = [torch.empty_like(seen) for _ in range(dist.get_world_size())]
    dist.all_gather(all_seen, seen)
    newest = max(all_seen)
    if newest < 0:
        return None
    source = all_seen.index(newest)
    state = [torch.load(mine, map_location="cpu", weights_only=True) if dist.get_rank() == source else None]
    dist.broadcast_object_list(state, src=source, device=device)
    return state[0]


class Trainer:
    """Model, optimizer, schedule, and how many samples are done."""

    def __init__(self, args: argparse.Namespace, device: torch.device) -> None:
        self.args, self.device, self.seen = args, device, 0
        self.rank, self.world_size = dist.get_rank(), dist.get_world_size()
        torch.manual_seed(args.seed)  # the same model and data everywhere
        self.x = torch.rand(args.samples, 8)
        self.y = (self.x * 6).sin().sum(1, keepdim=True)
        layers = [torch.nn.Linear(8, 64), torch.nn.ReLU(), torch.nn.Dropout(args.dropout), torch.nn.Linear(64, 1)]
        self.model = DistributedDataParallel(torch.nn.Sequential(*layers).to(device))
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-2)
        self.schedule = torch.optim.lr_scheduler.ExponentialLR(self.optimizer, gamma=0.99)
        torch.manual_seed(args.seed + 1 + self.rank)  # each worker drops out other units
        if state := load(args.checkpoints, device):
            self.restore(state)

    def restore(self, state: dict) -> None:
        """Go on where the checkpoint was written, maybe by another number of workers."""
        for name in ("model", "optimizer", "schedule"):
            getattr(self, name).load_state_dict(state[name])
        self.seen = state["seen"]
        if len(state["random"]) == self.world_size:
            own = state["random"][self.rank]
            torch.set_rng_state(own[0])
            if self.device.type == "cuda" and own[1:]:
                torch.cuda.set_rng_state(own[1], self.device)
        else:  # other workers than then: new streams, yet the same ones at every attempt
            torch.manual_seed(self.args.seed + self.seen + self.rank)
        if self.rank == 0:
            print(f"resumed after {self.seen} samples of {len(state['random'])} workers, now {self.world_size}")

    def checkpoint(self) -> None:
        """Save on every node what all workers together know."""
        cuda = [torch.cuda.get_rng_state(self.device)] if self.device.type == "cuda" else []
        random: list = [None] * self.world_size
        dist.all_gather_object(random, [torch.get_rng_state(), *cuda])
        if os.environ["LOCAL_RANK"] == "0":
            parts = {name: getattr(self, name).state_dict() for name in ("model", "optimizer", "schedule")}
            save(self.args.checkpoints, {**parts, "seen": self.seen, "random": random})

    def batch(self) -> list[int]:
        """The samples of the next global batch; the last one of an epoch may be smaller."""
        epoch, offset = divmod(self.seen, self.args.samples)
        order = torch.randperm(self.args.samples, generator=torch.Generator().manual_seed(self.args.seed + epoch))
        return order[offset : offset + self.args.global_batch].tolist()

    def step(self) -> tuple[float, bool]:
        """One global batch; its mean loss, and whether anybody was told to stop."""
        batch = self.batch()
        mine = batch[self.rank :: self.world_size]
        parts = [mine[start : start + self.args.micro_batch] for start in range(0, len(mine), self.args.micro_batch)]
        parts = parts or [[]]  # a worker without a sample takes part all the same: its gradients are zeros
        told = torch.zeros(2, device=self.device)
        for number, part in enumerate(parts):
            last = number == len(parts) - 1  # gradients are exchanged once, behind the last
            with nullcontext() if last else self.model.no_sync():
                predicted = self.model(self.x[part].to(self.device))
                loss = (predicted - self.y[part].to(self.device)).square().sum() / len(batch)
                (loss * self.world_size).backward()  # DDP divides the sum over the workers by their number
            told[0] += loss.detach()
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.schedule.step()
        self.seen += len(batch)
        told[1] = stopping
        dist.all_reduce(told)  # the loss and the wish to stop in one go
        if self.args.show_samples:
            print(f"after {self.seen}: {' '.join(map(str, mine))}")
        return told[0].item(), told[1].item() > 0

    def train(self) -> None:
        """Until all epochs are done or somebody wants to stop."""
        steps = 0
        while self.seen < self.args.epochs * self.args.samples:
            loss, stopped = self.step()
            steps += 1
            if self.rank == 0:
                print(f"seen {self.seen} loss {loss:.9g}")
            stopped |= steps == self.args.most_steps
            if stopped or steps % self.args.save_every == 0:
                self.checkpoint()
            if stopped:
                print(f"rank {self.rank} stops after {self.seen} samples")
                return
        self.checkpoint()


@record  # an exception goes to the file from which clusterddp tells who failed first
def main() -> None:
    """Train from where the last run ended."""
    for number in (signal.SIGTERM, signal.SIGUSR1):
        signal.signal(number, stop)
    parser = argparse.ArgumentParser()
    numbers = {"epochs": 2, "samples": 1000, "global-batch": 64, "micro-batch": 16, "save-every": 10, "seed": 0}
    for name, value in numbers.items():
        parser.add_argument(f"--{name}", type=int, default=value)
    parser.add_argument("--most-steps", type=int, default=0, help="stop after so many steps of this run")
    parser.add_argument("--dropout", type=float, default=0.1)
    parser.add_argument("--checkpoints", type=Path, default=Path("checkpoints"))
    parser.add_argument("--show-samples", action="store_true", help="each worker prints which samples it takes")
    args = parser.parse_args()
    cuda = torch.cuda.is_available()
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if cuda else torch.device("cpu")
    if cuda:
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if cuda else "gloo", timeout=timedelta(minutes=5))
    Trainer(args, device).train()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
