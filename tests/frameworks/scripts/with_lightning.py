"""Lightning's DDP on a model of eight weights."""

# ruff: noqa: ANN001, ANN201, ANN204, PTH118
# mypy: ignore-errors

import hashlib
import os

import lightning
import torch
from torch.utils.data import DataLoader, TensorDataset


class Model(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(8, 1)

    def training_step(self, batch, _index):
        loss = torch.nn.functional.mse_loss(self.layer(batch[0]), batch[1])
        self.log("loss", loss, sync_dist=True)
        return loss

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


if __name__ == "__main__":
    lightning.seed_everything(1)
    x = torch.randn(64, 8)
    trainer = lightning.Trainer(
        accelerator="cpu",
        strategy="ddp",
        devices=int(os.environ["LOCAL_WORLD_SIZE"]),
        num_nodes=int(os.environ["GROUP_WORLD_SIZE"]),
        max_epochs=2,
        logger=False,
        enable_progress_bar=False,
        default_root_dir=os.path.join(os.environ["CLUSTERDDP_RUN_DIR"], "checkpoints"),
    )
    model = Model()
    trainer.fit(model, DataLoader(TensorDataset(x, x.sum(1, keepdim=True)), batch_size=4, num_workers=1))
    weights = b"".join(one.detach().numpy().tobytes() for one in model.parameters())
    print("result", trainer.global_rank, trainer.world_size, trainer.global_step, hashlib.sha256(weights).hexdigest())
