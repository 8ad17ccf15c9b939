"""A job's settings outside NCCL_* and GLOO_* variables: NCCL's files, proxies, cache folders."""

import os
import re
from typing import Dict, Mapping, Sequence

SYSTEM_FILE = "/etc/nccl.conf"
FOLDER_VARIABLES = ("TMPDIR", "TORCH_EXTENSIONS_DIR", "TORCH_HOME", "HF_HOME", "XDG_CACHE_HOME")
_PROXIES = ("http_proxy", "https_proxy", "all_proxy", "no_proxy")
_PROXY_USER = re.compile(r"^(\w+://)?\S*@")  # name and password of a proxy
_MAX_FILE = 1 << 16  # bytes of a file that is read


def settings(env: Mapping[str, str], home: str, system: str = SYSTEM_FILE) -> Dict[str, str]:
    """What NCCL's files set that ``env`` does not, and the proxies, without their user names and passwords.

    The first to name a variable wins: the environment, the user's file (NCCL_CONF_FILE, or .nccl.conf in the home), the
    system's.
    """
    user_file = env.get("NCCL_CONF_FILE") or os.path.join(home, ".nccl.conf")
    found = {**_read_settings(system), **_read_settings(user_file)}
    chosen = {name: found[name] for name in sorted(found) if name not in env}
    for name in _PROXIES:
        value = env.get(name) or env.get(name.upper())
        if value:
            chosen[name] = _PROXY_USER.sub(r"\1***@", value)[:1000]
    return chosen


def folder_variables(env: Mapping[str, str], names: Sequence[str] = FOLDER_VARIABLES) -> Dict[str, str]:
    """The variables in ``names`` that ``env`` sets: folders of temporary files and caches."""
    return {name: env[name][:1000] for name in names if env.get(name)}


def _read_settings(path: str) -> Dict[str, str]:
    """The NCCL variables that a file of settings sets; the first line for a name wins."""
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            lines = file.read(_MAX_FILE).replace("\0", "").splitlines()
    except OSError:  # it is missing, or NCCL cannot read it either
        return {}
    found: Dict[str, str] = {}
    for line in lines:
        name, equals, value = line.partition("=")
        if equals and name.strip().startswith("NCCL_"):
            found.setdefault(name.strip()[:200], value.strip()[:1000])
    return found
