"""accelerate's loop on a model of eight weights."""

# mypy: ignore-errors

import hashlib

import torch
from accelerate import Accelerator
from accelerate.utils import set_seed
from torch.utils.data import DataLoader, TensorDataset

accelerator = Accelerator(cpu=True)
set_seed(1)
x = torch.randn(64, 8)
model = torch.nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
loader = DataLoader(TensorDataset(x, x.sum(1, keepdim=True)), batch_size=4, shuffle=True)
model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
for inputs, wanted in loader:
    loss = torch.nn.functional.mse_loss(model(inputs), wanted)
    accelerator.backward(loss)
    optimizer.step()
    optimizer.zero_grad()
losses = accelerator.gather(loss.detach().reshape(1)).tolist()
weights = b"".join(one.detach().numpy().tobytes() for one in accelerator.unwrap_model(model).parameters())
print("result", accelerator.process_index, accelerator.num_processes, losses, hashlib.sha256(weights).hexdigest())
accelerator.end_training()
