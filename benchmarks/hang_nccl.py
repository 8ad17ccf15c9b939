"""The scripts of benchmarks/hangs on NCCL: all ranks share this machine's one GPU.

NCCL refuses two ranks of one host on one GPU. Ranks that name different hosts in NCCL_HOSTID are not refused, and meet
over sockets, as ranks of different hosts do.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

MODULE = """
import os

import torch
import torch.distributed as dist

os.environ["NCCL_HOSTID"] = os.environ["RANK"]
torch.set_default_device("cuda")


def init_process_group(_gloo, *args, **options):
    dist.init_process_group("nccl", *args, **options)
"""
BEGIN = 'dist.init_process_group("gloo"'
# A collective of NCCL returns before it is done, and a rank that exits takes its part with it. On a line of its own at
# the end, so that no line of the script moves.
WAIT = '\n__import__("torch").cuda.synchronize()\n'


def use_nccl(folder: Path) -> None:
    """Rewrite a copy of the scripts so that they use NCCL and tensors on the GPU; their lines keep their numbers."""
    (folder / "one_gpu.py").write_text(MODULE)
    for path in folder.glob("*.py"):
        text = path.read_text()
        if BEGIN in text:
            begun = text.replace(BEGIN, BEGIN.replace("dist", "__import__('one_gpu')"))
            path.write_text(begun.rstrip() + WAIT)
