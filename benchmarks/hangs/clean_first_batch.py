"""The first batch of one rank's data loader takes long: its worker processes are busy, the rank itself waits."""

import os
import time

import torch
import torch.distributed as dist

dist.init_process_group("gloo")


class Data(torch.utils.data.Dataset):
    def __len__(self):
        return 2

    def __getitem__(self, index):
        end = time.monotonic() + (float(os.environ.get("PAUSE", "20")) if dist.get_rank() == 2 else 0)
        while time.monotonic() < end:
            pass
        return index


dist.all_reduce(torch.ones(4))
print("ready", flush=True)
for _ in torch.utils.data.DataLoader(Data(), num_workers=2):
    dist.all_reduce(torch.ones(4))
