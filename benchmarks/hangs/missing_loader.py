"""One rank's data loader waits for a worker process that is stuck in an item.

class: missing
ranks: 1
"""

import time

import torch
import torch.distributed as dist

dist.init_process_group("gloo")


class Data(torch.utils.data.Dataset):
    def __len__(self):
        return 9

    def __getitem__(self, index):
        return index if index < 4 or dist.get_rank() != 1 else time.sleep(3600)


for number, batch in enumerate(torch.utils.data.DataLoader(Data(), num_workers=1)):  # HERE
    print("ready" if number == 3 else "step", flush=True)
    dist.all_reduce(torch.ones(4))
