"""accelerate's loop, which goes on from its last checkpoint.

    clusterddp run examples/with_accelerate.py --steps 20 --out out

`--out` has to be a folder that all hosts see. accelerate finds ranks, addresses and devices in the worker's
environment; `accelerate launch`, `accelerate config` and a host file are not needed.
"""

import argparse
from pathlib import Path

import torch
import torch.distributed.nn  # before a group is made: docs/examples.md, "the end of a worker"
from accelerate import Accelerator
from accelerate.utils import ProjectConfiguration, set_seed
from torch.utils.data import DataLoader, TensorDataset


def train(accelerator: Accelerator, steps: int, out: Path) -> None:
    """Train up to so many steps, those of earlier runs included."""
    set_seed(1)
    x = torch.randn(512, 8)
    model = torch.nn.Linear(8, 1)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    loader = DataLoader(TensorDataset(x, x.sum(1, keepdim=True)), batch_size=8, shuffle=True)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    done = Steps()
    accelerator.register_for_checkpointing(done)
    checkpoints = sorted((out / "checkpoints").glob("checkpoint_*"), key=lambda path: int(path.name[11:]))
    if checkpoints:
        accelerator.load_state(str(checkpoints[-1]))
        accelerator.project_configuration.iteration = int(checkpoints[-1].name[11:]) + 1
        if accelerator.is_main_process:
            print(f"resumed after step {done.number}")
    while done.number < steps:
        for inputs, wanted in loader:
            loss = torch.nn.functional.mse_loss(model(inputs), wanted)
            accelerator.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
            done.number += 1
            if done.number % 10 == 0 or done.number == steps:
                accelerator.save_state()
                mean = accelerator.reduce(loss.detach(), "mean").item()
                if accelerator.is_main_process:
                    print(f"step {done.number} loss {mean:.4f}")
            if done.number == steps:
                break


class Steps:
    """The number of training steps done, saved with each checkpoint."""

    number = 0

    def state_dict(self) -> dict:
        """Return what accelerate puts into a checkpoint."""
        return {"number": self.number}

    def load_state_dict(self, state: dict) -> None:
        """Load the number from a checkpoint of accelerate."""
        self.number = state["number"]


def main() -> None:
    """Make the accelerator, and end it when nothing holds its process group any more."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--out", type=Path, default=Path("out"))
    args = parser.parse_args()
    accelerator = Accelerator(
        cpu=not torch.cuda.is_available(),
        project_config=ProjectConfiguration(str(args.out), automatic_checkpoint_naming=True, total_limit=2),
    )
    train(accelerator, args.steps, args.out)
    accelerator.free_memory()  # the model holds the group: docs/examples.md, "the end of a worker"
    accelerator.end_training()


if __name__ == "__main__":
    main()
