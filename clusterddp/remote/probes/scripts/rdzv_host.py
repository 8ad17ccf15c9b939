"""Ask torch's own function whether it considers an endpoint to be this host.

The function is in one file of torch that needs nothing else of it, so that file alone is loaded: ``import torch`` takes
a second and more. The helper loads it itself. Where it cannot, this source is passed to the training interpreter's
``python -c`` with two descriptor numbers (see system/bounded_child.py).
"""

import importlib
import importlib.util
import json
import os
import sys
from typing import Any, Callable, Dict, List

_MODULE_PATH = ("distributed", "elastic", "rendezvous", "utils")


def main(given: int, answer: int) -> None:
    """Read the endpoints from one descriptor, write the answer to the other."""
    data = json.dumps(match_endpoints(load_function, json.loads(os.read(given, 1 << 16)))).encode()
    while data:
        data = data[os.write(answer, data) :]


def match_endpoints(find: Callable[[], Callable[[str], Any]], endpoints: List[str]) -> Dict[str, Any]:
    """Call the function that ``find`` returns: ``{matches: {endpoint: true or false}, error}``, one of them empty."""
    try:
        matches = find()
        return {"matches": {name: bool(matches(name)) for name in endpoints}, "error": None}
    except BaseException as error:  # noqa: BLE001 - a broken build may raise anything; the words are the fact
        return {"matches": {}, "error": "%s: %s" % (type(error).__name__, str(error).strip().split("\n")[0][:300])}


def load_function() -> Callable[[str], Any]:
    """Torch's function, from its file alone, or from torch as a whole where the file needs that."""
    for folder in sys.path:
        torch = os.path.join(folder, "torch")
        if os.path.isdir(torch):
            try:
                return from_file(torch)
            except (ImportError, AttributeError, OSError):  # another version's: then import all of torch
                break
    return _function_of(importlib.import_module(".".join(["torch", *_MODULE_PATH])))


def from_file(torch: str) -> Callable[[str], Any]:
    """Torch's function, from its file in torch's folder; raises what the file raises, which may need torch."""
    spec = importlib.util.spec_from_file_location("clusterddp_torchs_utils", os.path.join(torch, *_MODULE_PATH) + ".py")
    if spec is None or spec.loader is None:
        raise ImportError(torch)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return _function_of(module)


def _function_of(module: Any) -> Callable[[str], Any]:
    function: Callable[[str], Any] = module._matches_machine_hostname  # noqa: SLF001 - what torchrun itself calls
    return function


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
