"""Tests start from what a login has: its signals, limits, umask, environment, whatever started them.

A shell's background job ignores SIGINT and SIGQUIT, a service blocks some, a developer's terminal is full of variables;
whatever a test starts would inherit them, and what is compared with a login's would differ.
"""

from __future__ import annotations

import math
import os
import resource
import shutil
import signal
import subprocess
from pathlib import Path

PYTHON_IGNORES = {signal.SIGPIPE, signal.SIGXFSZ}  # at its start; Popen gives them back to what it starts
KIB, MIB = 1 << 10, 1 << 20
SOFT = {  # Debian's at a login; the others are unlimited
    resource.RLIMIT_CORE: 0,
    resource.RLIMIT_MEMLOCK: 8 * MIB,
    resource.RLIMIT_NOFILE: 1 * KIB,
    resource.RLIMIT_STACK: 8 * MIB,
}
UNLIMITED = (
    resource.RLIMIT_AS,
    resource.RLIMIT_CPU,
    resource.RLIMIT_DATA,
    resource.RLIMIT_FSIZE,
    resource.RLIMIT_NPROC,
    resource.RLIMIT_RSS,
)
UMASK = 0o022
LANG = "C.UTF-8"
KEPT = {"PATH", "HOME", "USER", "LOGNAME", "SHELL", "TERM", "TMPDIR", "CI"}
# Of pytest and of what measures coverage; and what tests are asked by (CONTRIBUTING.md).
KEPT_PREFIXES = (
    "PYTEST_",
    "COV_",
    "COVERAGE_",
    "CLUSTERDDP_CHAOS",
    "CLUSTERDDP_TEST_FACTS",
    "CLUSTERDDP_SLURM",
    "CLUSTERDDP_FUZZ",
    "CLUSTERDDP_KILLS",
    "CLUSTERDDP_LAB_",
    "CLUSTERDDP_FRAMEWORKS",
    "CLUSTERDDP_TORCHX",
    "CLUSTERDDP_PLAYBOOKS",
    "CLUSTERDDP_TORCH_SOURCES",
)


def begin() -> None:
    """Give this process, and so all that it starts, what a login has; called in the main thread."""
    for number in signal.valid_signals() - PYTHON_IGNORES:
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    for which in (*SOFT, *UNLIMITED):
        hard = resource.getrlimit(which)[1]
        wanted = SOFT.get(which, resource.RLIM_INFINITY)
        most = min(wanted, hard, key=lambda limit: math.inf if limit == resource.RLIM_INFINITY else limit)
        resource.setrlimit(which, (most, hard))
    os.umask(UMASK)
    for name in list(os.environ):
        if name not in KEPT and not name.startswith(KEPT_PREFIXES):
            del os.environ[name]
    os.environ["LANG"] = LANG
    if "PATH" in os.environ:
        os.environ["PATH"] = _with_an_interpreter(os.environ["PATH"])


def _with_an_interpreter(path: str) -> str:
    """The PATH, with the folder of its `python3` first where that name is a version manager's script.

    Such a script starts a dozen shells before the interpreter, at each of some thousand connections to this machine.
    """
    found = shutil.which("python3", path=path)
    if not found or Path(found).read_bytes()[:2] != b"#!":
        return path
    done = subprocess.run(
        [found, "-I", "-S", "-c", "import sys; print(sys.executable)"], capture_output=True, text=True, check=False
    )
    interpreter = done.stdout.strip()
    return f"{Path(interpreter).parent}:{path}" if interpreter else path
