"""Stores, of C++; no groups of processes."""

import torch

torch._C._c10d_init()
from torch._C._distributed_c10d import *  # noqa: E402, F403
from torch.distributed import distributed_c10d  # noqa: E402, F401


def is_available() -> bool:
    """Whether torch.distributed is there."""
    return True


def is_gloo_available() -> bool:
    """What the whole torch says on any machine of these tests."""
    return True


def is_nccl_available() -> bool:
    """As above: it is a build without CUDA."""
    return False
