"""A torch made for tests: GPUs as ``told.json`` beside it says, no more of torch than the doctor asks for.

In ``told.json``: ``"1"``: raise, wrong, hang or crash when GPU 1 is started; ``"0-1"``: hang or garbage when GPU 0 is
copied to GPU 1; ``count``, ``arches``, ``peers`` (whether GPUs reach each other).
"""

from __future__ import annotations

TORCH = """
import json, os, signal, threading, types

with open(os.path.join(os.path.dirname(os.path.abspath(__file__)), "told.json")) as file:
    told = json.load(file)
int32 = "int32"
__version__ = "2.7.0+made"
version = types.SimpleNamespace(cuda="12.4", hip=None)


class Tensor:
    def __init__(self, values, device):
        self.values, self.device = values, device

    def __add__(self, number):
        return Tensor([value + number for value in self.values], self.device)

    def item(self):
        return self.values[0]

    def copy_(self, other):
        word = told.get("%d-%d" % (other.device, self.device))
        if word == "hang":
            threading.Event().wait(600)
        self.values = [0] * len(other.values) if word == "garbage" else list(other.values)

    def cpu(self):
        return self.values


def zeros(count, device, dtype=None):
    word = told.get(str(device), "well")
    if word == "hang":
        threading.Event().wait(600)
    if word == "crash":
        os.kill(os.getpid(), signal.SIGSEGV)
    if word == "raise":
        raise RuntimeError("CUDA error: system not yet initialized\\nmore words")
    return Tensor([5.0 if word == "wrong" else 0.0] * min(count, 8), device)


def arange(count, dtype, device):
    return Tensor(list(range(min(count, 8))), device)


def equal(one, other):
    return one == other


cuda = types.SimpleNamespace(
    device_count=lambda: told.get("count", 2),
    get_device_name=lambda index: "NVIDIA H100 80GB HBM3",
    get_arch_list=lambda: told.get("arches", ["sm_90", "compute_90"]),
    get_device_capability=lambda index: (9, 0),
    can_device_access_peer=lambda source, target: told.get("peers", True),
    synchronize=lambda index: None,
)
"""
