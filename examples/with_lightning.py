"""Lightning's Trainer with DDP, which goes on from its last checkpoint.

    clusterddp run examples/with_lightning.py --epochs 3 --out out

`--out` has to be a folder that all hosts see. `devices` and `num_nodes` come from the worker's environment: Lightning
takes torchrun's ranks, but refuses to start where these two numbers say something else.
"""

import argparse
import os
from pathlib import Path

import lightning
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from torch.utils.data import DataLoader, TensorDataset


class Model(lightning.LightningModule):
    """A linear model, trained to predict the sum of its inputs."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(8, 1)

    def training_step(self, batch: list, _index: int) -> torch.Tensor:
        """Return the loss of one batch."""
        loss = torch.nn.functional.mse_loss(self.layer(batch[0]), batch[1])
        self.log("loss", loss, on_step=False, on_epoch=True, sync_dist=True)
        return loss

    def on_train_epoch_end(self) -> None:
        """Print one line for each epoch, on rank 0."""
        if self.trainer.is_global_zero:
            print(f"epoch {self.current_epoch} loss {self.trainer.callback_metrics['loss']:.4f}")

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Return the optimizer; the Trainer calls this."""
        return torch.optim.AdamW(self.parameters(), lr=1e-2)


def main() -> None:
    """Train up to `--epochs` epochs, those of earlier runs included."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--out", type=Path, default=Path("out"))
    args = parser.parse_args()
    lightning.seed_everything(1)
    x = torch.randn(512, 8)
    data = DataLoader(TensorDataset(x, x.sum(1, keepdim=True)), batch_size=8, shuffle=True)
    trainer = lightning.Trainer(
        accelerator="gpu" if torch.cuda.is_available() else "cpu",
        strategy="ddp",
        devices=int(os.environ["LOCAL_WORLD_SIZE"]),
        num_nodes=int(os.environ["GROUP_WORLD_SIZE"]),
        max_epochs=args.epochs,
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        callbacks=[ModelCheckpoint(args.out, save_last=True)],
    )
    last = args.out / "last.ckpt"
    model = Model()
    trainer.fit(model, data, ckpt_path=last if last.is_file() else None)
    if trainer.is_global_zero:
        print(f"ended after {trainer.global_step} steps")


if __name__ == "__main__":
    main()
