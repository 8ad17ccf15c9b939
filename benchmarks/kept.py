"""Connections kept for the length of a measurement: ours of `up --keep`, and OpenSSH masters of a peer's own."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

CLUSTERDDP = str(Path(sys.executable).with_name("clusterddp"))


@contextlib.contextmanager
def kept_connections(inventory: Path, project: Path, env: Mapping[str, str] = os.environ) -> Iterator[dict[str, str]]:
    """Keep a connection to each host for the block; yield the variables with which our commands find them.

    ``env``: that of the commands otherwise.
    """
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        runtime = {"XDG_RUNTIME_DIR": folder}

        def clusterddp(*words: str) -> None:
            variables = {**env, **runtime}
            subprocess.run([CLUSTERDDP, *words], cwd=project, env=variables, check=True, capture_output=True)

        clusterddp("up", str(inventory), "--keep", "1h")
        try:
            yield runtime
        finally:
            clusterddp("down", "-i", str(inventory), "--yes")


@contextlib.contextmanager
def own_masters() -> Iterator[str]:
    """Yield the arguments of `ssh` by which it makes a master connection and uses it; all end with the block."""
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        try:
            yield f"-o ControlMaster=auto -o ControlPersist=600 -o ControlPath={folder}/%C"
        finally:
            for path in Path(folder).iterdir():
                subprocess.run(["ssh", "-O", "exit", "-S", str(path), "any"], capture_output=True, check=False)
