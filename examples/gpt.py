"""A small GPT that learns to write one character after another: DDP, mixed precision on GPUs, a constant batch.

    clusterddp run examples/gpt.py --steps 300

The global batch is the same for any number of workers: with fewer of them each takes more micro-batches, and
gradients are exchanged once a step. So the loss is that of one worker alone, but for rounding, only sooner.
"""

import argparse
import os
from contextlib import nullcontext
from pathlib import Path

import torch
import torch.distributed.nn  # before a group is made: docs/examples.md, "the end of a worker"
from torch import distributed as dist
from torch import nn
from torch.distributed.elastic.multiprocessing.errors import record
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel

TEXT = Path(__file__).with_name("data") / "harbour.txt"


class Block(nn.Module):
    """Attention to the characters before, then a small network for each."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.before_attention, self.before_network = nn.LayerNorm(width), nn.LayerNorm(width)
        self.query_key_value, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.network = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(batch, time, width) → the same shape."""
        batch, time, width = x.shape
        parts = self.query_key_value(self.before_attention(x)).view(batch, time, 3, self.heads, width // self.heads)
        query, key, value = parts.permute(2, 0, 3, 1, 4)  # each (batch, heads, time, width of a head)
        seen = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.out(seen.transpose(1, 2).reshape(batch, time, width))
        return x + self.network(self.before_network(x))


class GPT(nn.Module):
    """Characters in, chances of the next character out."""

    def __init__(self, characters: int, context: int, width: int = 64, heads: int = 4, layers: int = 2) -> None:
        super().__init__()
        self.context = context
        self.what, self.where = nn.Embedding(characters, width), nn.Embedding(context, width)
        self.blocks = nn.Sequential(*(Block(width, heads) for _ in range(layers)), nn.LayerNorm(width))
        self.next = nn.Linear(width, characters)

    def forward(self, characters: torch.Tensor) -> torch.Tensor:
        """(batch, time) of numbers → (batch, time, characters) of logits."""
        places = torch.arange(characters.shape[1], device=characters.device)
        return self.next(self.blocks(self.what(characters) + self.where(places)))

    @torch.no_grad()
    def write(self, begin: torch.Tensor, length: int) -> torch.Tensor:
        """Go on from ``begin``, one character after another."""
        line = begin
        for _ in range(length):
            logits = self(line[None, -self.context :])[0, -1]
            line = torch.cat([line, torch.multinomial(functional.softmax(logits.float(), 0), 1)])
        return line


def global_batch(text: torch.Tensor, step: int, size: int, context: int) -> torch.Tensor:
    """The pieces of text of one step, (size, context + 1): the same on every worker, whatever their number."""
    chance = torch.Generator().manual_seed(step)
    starts = torch.randint(len(text) - context, (size,), generator=chance)
    return torch.stack([text[start : start + context + 1] for start in starts.tolist()])


def train(args: argparse.Namespace, device: torch.device) -> None:
    """All steps; rank 0 tells the loss, and writes a little in the end."""
    rank, world_size = dist.get_rank(), dist.get_world_size()
    raw = TEXT.read_text(encoding="utf-8")
    alphabet = sorted(set(raw))
    text = torch.tensor([alphabet.index(character) for character in raw])
    torch.manual_seed(0)  # the same model everywhere
    model = DistributedDataParallel(GPT(len(alphabet), args.context).to(device))
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    mixed = torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda")
    for step in range(args.steps):
        batch = global_batch(text, step, args.global_batch, args.context)
        parts = batch[rank::world_size].to(device).split(args.micro_batch)
        total = torch.zeros((), device=device)
        for number, part in enumerate(parts):
            last = number == len(parts) - 1  # gradients are exchanged once, behind the last
            with nullcontext() if last else model.no_sync():
                with mixed:  # the forward pass alone: gradients take the types of what they belong to
                    logits = model(part[:, :-1])
                    loss = functional.cross_entropy(logits.flatten(0, 1), part[:, 1:].flatten(), reduction="sum")
                loss = loss / (args.global_batch * args.context)
                (loss * world_size).backward()  # DDP divides the sum over the workers by their number
            total += loss.detach()
        optimizer.step()
        optimizer.zero_grad()
        dist.all_reduce(total)
        if rank == 0 and (step % args.tell_every == 0 or step == args.steps - 1):
            print(f"step {step} loss {total.item():.6f}")
    if rank == 0 and args.write:
        written = model.module.write(text[:1].to(device), args.write)
        print("".join(alphabet[number] for number in written.tolist()))


@record  # an exception goes to the file from which clusterddp tells who failed first
def main() -> None:
    """Join the others, train, leave."""
    parser = argparse.ArgumentParser()
    numbers = {"steps": 300, "context": 64, "global-batch": 32, "micro-batch": 8, "tell-every": 20, "write": 200}
    for name, value in numbers.items():
        parser.add_argument(f"--{name}", type=int, default=value)
    args = parser.parse_args()
    if args.global_batch < int(os.environ["WORLD_SIZE"]):
        parser.error(f"--global-batch {args.global_batch} leaves some of {os.environ['WORLD_SIZE']} workers idle")
    cuda = torch.cuda.is_available()
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if cuda else torch.device("cpu")
    if cuda:
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if cuda else "gloo")
    train(args, device)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
