"""Python's own, without what passes tensors on."""

from multiprocessing import *  # noqa: F403

import torch

torch._C._multiprocessing_init()  # adds the two of this module


def _set_thread_name(name: str) -> None:
    torch._C._set_thread_name(name)
