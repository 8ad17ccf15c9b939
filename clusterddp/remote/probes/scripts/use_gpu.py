"""Test whether torch's GPUs really work; the training interpreter runs this in child processes, we never import it.

Its source is passed to ``python -c`` with ``start N`` or ``peers COUNT`` and two descriptor numbers (see
system/bounded_child.py). It answers with JSON lines, each as soon as it is known, so the lines before a hang show what
hangs.
"""

import json
import os
import sys
from typing import Any, Dict

ITEMS = 1 << 20  # of a copy between GPUs: 4 MiB, more than any buffer on the way


def main(what: str, number: int, answer: int) -> None:
    """Import torch and do what is asked."""

    def say(**fields: Any) -> None:
        data = json.dumps(fields).encode() + b"\n"
        while data:
            data = data[os.write(answer, data) :]

    try:
        import torch

        if what == "start":
            say(**start(torch, number))
        else:
            peers(torch, number, say)
    except Exception as error:  # noqa: BLE001 - CUDA fails in many ways; the words are the answer
        say(error=(str(error).strip().split("\n")[0] or type(error).__name__)[:300])


def start(torch: Any, index: int) -> Dict[str, Any]:
    """Start one GPU and compute on it: ``{arches, capability, error}``."""
    report: Dict[str, Any] = {"arches": [str(arch) for arch in torch.cuda.get_arch_list()], "error": None}
    try:
        report.update(capability=[int(part) for part in torch.cuda.get_device_capability(index)])
        if float((torch.zeros(1, device=index) + 1).item()) != 1.0:
            report.update(error="it adds 0 and 1 and gets another number")
    except Exception as error:  # noqa: BLE001 - as above
        report.update(error=(str(error).strip().split("\n")[0] or type(error).__name__)[:300])
    return report


def peers(torch: Any, count: int, say: Any) -> None:
    """Copy between all pairs of GPUs that report access to each other, and compare what arrives."""
    for source in range(count):
        for target in range(count):
            if source == target or not torch.cuda.can_device_access_peer(source, target):
                continue
            say(pair=[source, target])
            sent = torch.arange(ITEMS, dtype=torch.int32, device=source) + source + 1
            came = torch.zeros(ITEMS, dtype=torch.int32, device=target)
            came.copy_(sent)
            torch.cuda.synchronize(target)
            say(pair=[source, target], same=bool(torch.equal(came.cpu(), sent.cpu())))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[4]))
