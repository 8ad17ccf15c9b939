"""Two GPUs on a lab host, as far as the doctor can see: programs that print made output, and a made torch.

What they print lies in files of the host, so that a fault is put in by changing one. The output and the formats it was
made from: tests/data/nvidia-smi.
"""

from __future__ import annotations

import contextlib
import json
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.unit.torch_made import TORCH

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from tests.lab.host import LabHost

DATA = Path(__file__).parents[1] / "data" / "nvidia-smi"
KIND = "two-h100-550.54.15"
FOLDER = "/opt/made-gpus"
TORCH_ENV: Mapping[str, Any] = {"clusterddp_env": {"PYTHONPATH": FOLDER}}
_SMI = f"""#!/bin/sh
cd {FOLDER}
case "$*" in
    --query-gpu=*) cat gpus.csv ;;
    --query-compute-apps=*) cat apps.csv ;;
    "-q -x") [ -e hangs ] && exec sleep 600; cat health.xml ;;
    "nvlink -s") cat links.txt ;;
    *) echo "made nvidia-smi: $*"; exit 2 ;;
esac
"""
_JOURNAL = f"""#!/bin/sh
[ -e {FOLDER}/closed ] && echo "No journal files were opened due to insufficient permissions." >&2 && exit 1
case "$*" in *--grep*) cat {FOLDER}/journal ;; *) echo "Linux version" ;; esac
"""


class MadeGpus:
    """Two healthy GPUs on a host; each of its methods makes one fault and takes it away again."""

    def __init__(self, host: LabHost) -> None:
        self.host = host
        number = host.name[-2:]
        self.texts = {
            name: (DATA / f"{KIND}{suffix}").read_text().replace("33333333", f"333333{number}")
            for name, suffix in (("gpus.csv", ".csv"), ("health.xml", ".xml"), ("links.txt", ".nvlink.txt"))
        }
        self.texts |= {"apps.csv": "", "journal": "", "torch.py": TORCH, "told.json": "{}"}
        self.uuids = [line.split(", ")[1] for line in self.texts["gpus.csv"].splitlines()]
        for name, text in self.texts.items():
            self._write(name, text)
        for name, text in (("nvidia-smi", _SMI), ("journalctl", _JOURNAL)):
            host.write(f"/usr/local/bin/{name}", text, user="root", mode=0o755)

    @contextlib.contextmanager
    def second(self, old: str, new: str) -> Iterator[None]:
        """Its second GPU says something else."""
        first, mark, second = self.texts["health.xml"].rpartition("<gpu ")
        assert old in second
        with self.file("health.xml", first + mark + second.replace(old, new, 1)):
            yield

    @contextlib.contextmanager
    def file(self, name: str, text: str) -> Iterator[None]:
        """Another text in one of its files, that may not be there else."""
        self._write(name, text)
        yield
        if name in self.texts:
            self._write(name, self.texts[name])
        else:
            self.host.run(["rm", f"{FOLDER}/{name}"], user="root")

    @contextlib.contextmanager
    def xid(self, number: int, words: str) -> Iterator[None]:
        """The driver has reported an error of the second GPU, just now."""
        line = f"{time.time():.6f} host kernel: NVRM: Xid (PCI:0000:2a:00): {number}, pid=1, name=python, {words}\n"
        with self.file("journal", line):
            yield

    @contextlib.contextmanager
    def torch(self, **told: Any) -> Iterator[None]:
        """Torch finds something else; see tests/unit/torch_made.py."""
        with self.file("told.json", json.dumps({name.lstrip("_"): word for name, word in told.items()})):
            yield

    def _write(self, name: str, text: str) -> None:
        self.host.write(f"{FOLDER}/{name}", text, user="root")
