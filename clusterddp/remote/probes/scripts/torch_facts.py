"""What torch reports of itself; the training interpreter runs this in a child process, we never import it.

Its source is passed to ``python -c`` with two descriptor numbers (see system/bounded_child.py), and it answers with one
JSON object. An exception in a detail makes that detail null; only the import decides whether there is a torch.
"""

import ctypes
import json
import os
import sys
from typing import Any, Callable, Dict, Optional


def main(answer: int) -> None:
    """Import torch, collect the facts, and write them to the descriptor."""
    facts: Dict[str, Any] = {"import_error": None, "device_error": None}
    try:
        import torch
    except BaseException as error:  # noqa: BLE001 - a broken build may raise anything, SystemExit too
        facts.update(import_error="%s: %s" % (type(error).__name__, str(error).strip().split("\n")[0][:300]))
    else:
        facts.update(collect(torch))
    data = json.dumps(facts).encode()
    while data:
        data = data[os.write(answer, data) :]


def collect(torch: Any) -> Dict[str, Any]:
    """The facts of the imported module."""
    version = _try_detail(lambda: _version(torch.cuda.nccl.version()))
    library = _try_detail(_nccl_library)
    loaded = _try_detail(lambda: _library_version(library))
    count = _try_detail(lambda: int(torch.cuda.device_count())) or 0
    names, failure = [], None
    try:
        names = [torch.cuda.get_device_name(i) for i in range(count)]
    except Exception as error:  # noqa: BLE001 - CUDA's initialisation fails in many ways; the words are the fact
        failure = str(error).strip().split("\n")[0][:300]
    return {
        "version": str(torch.__version__),
        "cuda": _try_detail(lambda: torch.version.cuda),
        "hip": _try_detail(lambda: torch.version.hip),
        "nccl": version,
        "nccl_library": library,
        "nccl_loaded": loaded,
        "gloo": _try_detail(lambda: bool(torch.distributed.is_gloo_available())) or False,
        "nccl_available": _try_detail(lambda: bool(torch.distributed.is_nccl_available())) or False,
        "device_count": count,
        "device_names": names,
        "device_error": failure,
    }


def _try_detail(ask: Callable[[], Any]) -> Any:
    """The result of a call, or None if it raises."""
    try:
        return ask()
    except Exception:  # noqa: BLE001 - a build may lack the feature
        return None


def _nccl_library() -> Optional[str]:
    """The libnccl that importing torch has loaded: LD_LIBRARY_PATH may provide another than torch was built with."""
    with open("/proc/self/maps", encoding="utf-8", errors="replace") as lines:
        paths = [line.split(None, 5)[5].strip() for line in lines if "/libnccl.so" in line]
    return paths[0] if paths else None


def _library_version(library: Optional[str]) -> Optional[str]:
    """The version that NCCL's library itself reports; torch reports that of the headers it was built with."""
    if library is None:
        return None
    number = ctypes.c_int()
    ctypes.CDLL(library).ncclGetVersion(ctypes.byref(number))
    return _version(number.value)


def _version(value: Any) -> str:
    """NCCL's version as text, from its number or the parts of it."""
    if isinstance(value, int) and value >= 10000:  # NCCL's encoding since 2.9
        return "%d.%d.%d" % (value // 10000, value // 100 % 100, value % 100)
    if isinstance(value, int):  # the encoding before, 2708 for 2.7.8
        return "%d.%d.%d" % (value // 1000, value // 100 % 10, value % 100)
    return ".".join(str(part) for part in value)


if __name__ == "__main__":
    main(int(sys.argv[2]))
