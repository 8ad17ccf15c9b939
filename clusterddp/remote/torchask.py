"""What torch says of itself; run by the training interpreter in a child process, never imported by us.

Its source is handed to ``python -c`` with two descriptor numbers (see child.py): it answers with one JSON object.
An exception in a detail leaves that detail null; only the import decides whether there is a torch.
"""

import json
import os
import sys
from typing import Any, Callable, Dict


def main(answer: int) -> None:
    """Import torch, collect, write the answer to the descriptor."""
    facts: Dict[str, Any] = {"import_error": None, "device_error": None}
    try:
        import torch
    except BaseException as error:  # noqa: BLE001 - a broken build may raise anything, SystemExit too
        facts["import_error"] = "%s: %s" % (type(error).__name__, str(error).strip().split("\n")[0][:300])
    else:
        collect(torch, facts)
    data = json.dumps(facts).encode()
    while data:
        data = data[os.write(answer, data) :]


def collect(torch: Any, facts: Dict[str, Any]) -> None:
    """Fill ``facts`` from the imported module."""
    facts["version"] = str(torch.__version__)
    facts["cuda"] = _try(lambda: torch.version.cuda)
    facts["hip"] = _try(lambda: torch.version.hip)
    facts["nccl"] = _try(lambda: _version(torch.cuda.nccl.version()))
    facts["gloo"] = _try(lambda: bool(torch.distributed.is_gloo_available())) or False
    facts["nccl_available"] = _try(lambda: bool(torch.distributed.is_nccl_available())) or False
    facts["device_count"] = _try(lambda: int(torch.cuda.device_count())) or 0
    try:
        facts["device_names"] = [torch.cuda.get_device_name(i) for i in range(facts["device_count"])]
    except Exception as error:  # noqa: BLE001 - CUDA's initialisation fails in many ways; the words are the fact
        facts["device_names"] = []
        facts["device_error"] = str(error).strip().split("\n")[0][:300]


def _try(ask: Callable[[], Any]) -> Any:
    try:
        return ask()
    except Exception:  # noqa: BLE001 - builds lack what they were built without
        return None


def _version(value: Any) -> str:
    if isinstance(value, int):  # torch's own old spelling, 2708 for 2.7.8
        return "%d.%d.%d" % (value // 1000, value // 100 % 10, value % 100)
    return ".".join(str(part) for part in value)


if __name__ == "__main__":
    main(int(sys.argv[2]))
