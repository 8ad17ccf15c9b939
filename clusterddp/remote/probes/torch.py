"""Find this host's training interpreter and the facts of its torch, which are cached between runs.

``import torch`` takes seconds, or minutes on a cold network file system, so its facts are cached under everything they
depend on: the interpreter, torch's installation, the setup, the environment, the visible GPUs. Failures are never
cached.
"""

import hashlib
import json
import os
import sys
from typing import Any, Dict, List, Optional, Sequence

from ..shared.schema.json_text import read_json
from ..shared.verdict.failures import TORCH_NOT_IMPORTED_IN_TIME
from ..system.bootstrap import Refused, private_folder, write_json
from ..system.bounded_child import Child
from ..system.interpreter import Interpreter
from ..system.small_files import sorted_names

TIMEOUT = 120.0  # seconds for `import torch`
CACHE_FORMAT = 2


def torch_facts(
    interpreter: Interpreter,
    env: Dict[str, str],
    *,
    state: str,
    depends: Sequence[str],
    gpus: bool = False,
    fresh: bool = False,
) -> Dict[str, Any]:
    """What torch reports, from the cache in the state folder unless something it depends on has changed, or ``fresh``.

    ``depends`` are texts that the answer depends on besides the interpreter and torch's installation; ``gpus``: whether
    the host has GPUs for it, so that a torch that is built for GPUs and sees none has failed. Returns
    ``{version, cuda, hip, nccl, nccl_loaded, nccl_library, gloo, nccl_available, device_count, device_names,
    device_error, import_error}``; with ``import_error`` set the rest has no meaning.
    """
    folder = os.path.join(state, "facts")
    path = os.path.join(folder, cache_key(interpreter, depends) + ".json")
    cached = None if fresh else _load_cache(path)
    if cached is not None and not _is_failure(cached, gpus=gpus):
        return cached
    facts = _query_torch(interpreter, env)
    if not _is_failure(facts, gpus=gpus):
        _save(folder, path, facts)
    return facts


def _is_failure(facts: Dict[str, Any], *, gpus: bool) -> bool:
    """Whether the next look may find more without a change of what the facts depend on: a user joins a group, say."""
    sees_none = gpus and not facts.get("device_count") and (facts.get("cuda") or facts.get("hip"))
    return bool(facts.get("import_error") or facts.get("device_error") or sees_none)


def cache_key(interpreter: Interpreter, depends: Sequence[str]) -> str:
    """A digest of everything torch's answer depends on."""
    real = os.path.realpath(interpreter.python)
    parts = [interpreter.python, _path_and_mtime(real), *interpreter.path, *installations(interpreter.path), *depends]
    return hashlib.sha256("\0".join(parts).encode("utf-8", "surrogateescape")).hexdigest()[:32]


def installations(path: Sequence[str]) -> List[str]:
    """Every torch on a module search path, and NVIDIA's packages, as ``folder mtime``, found without an import."""
    return [
        _path_and_mtime(os.path.join(folder, name))
        for folder in path
        for name in sorted_names(folder or "/")
        if _decides_torch(name)
    ]


def torch_folder(path: Sequence[str]) -> Optional[str]:
    """The folder of the torch that would be imported; None where there is none."""
    folders = (os.path.join(folder or "/", "torch") for folder in path)
    return next((folder for folder in folders if os.path.isdir(folder)), None)


def _decides_torch(name: str) -> bool:
    """Whether it is torch, or the record of torch or of a package whose libraries it loads: nvidia-nccl-cu12, say."""
    return name == "torch" or (name.startswith(("torch-", "nvidia_")) and name.endswith((".dist-info", ".egg-info")))


def _query_torch(interpreter: Interpreter, env: Dict[str, str]) -> Dict[str, Any]:
    """Run the script torch_facts.py in the interpreter; what failed is in ``import_error``."""
    import pkgutil

    source = pkgutil.get_data(__package__ or "", "scripts/torch_facts.py") or b""
    # From the root folder: a torch.py in a user's home must not be taken for torch.
    child = Child([interpreter.python, "-c", source.decode()], env=env, timeout=TIMEOUT, cwd="/", input_data=b"")
    answer = child.answer()
    facts: Dict[str, Any] = {"import_error": None, "device_error": None}
    if answer.payload:
        return {**facts, **json.loads(answer.payload)}
    if answer.status is None:
        return dict(facts, import_error="%s within %d s" % (TORCH_NOT_IMPORTED_IN_TIME, TIMEOUT))
    return dict(facts, import_error="import torch ended with status %s: %s" % (answer.status, answer.last_line()))


def _load_cache(path: str) -> Optional[Dict[str, Any]]:
    """The facts stored in a file; None if they cannot be read or have another format."""
    try:
        stored = read_json(path)
    except (OSError, ValueError):
        return None  # damaged, or changed by another program: it is only a cache
    facts = stored.get("torch") if isinstance(stored, dict) and stored.get("format") == CACHE_FORMAT else None
    return facts if isinstance(facts, dict) else None


def _save(folder: str, path: str, facts: Dict[str, Any]) -> None:
    try:
        private_folder(folder)
        write_json(path, {"format": CACHE_FORMAT, "torch": facts})
    except (OSError, Refused) as error:
        print("facts are not cached: %s" % error, file=sys.stderr)


def _path_and_mtime(path: str) -> str:
    try:
        return "%s %d" % (path, os.stat(path).st_mtime_ns)
    except OSError:
        return path + " gone"
