"""Two users of one machine, a folder where both may write, and commands as either: one attacks the other."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from typing import TYPE_CHECKING

import pytest

from tests.integration.cli import CLUSTERDDP, Done

if TYPE_CHECKING:
    from pathlib import Path

VICTIM, STRANGER = 4101, 4102

needs_two_users = pytest.mark.skipif(
    os.geteuid() != 0 or not shutil.which("setpriv"), reason="only root gives commands as other users"
)


class Machine:
    """Two users of one machine, and a folder where both may write, as ``/tmp``."""

    def __init__(self, base: Path) -> None:
        self.shared, self.home, self.marks = base / "shared", base / "home", base / "marks"
        base.chmod(0o755)
        for folder, mode, owner in ((self.shared, 0o1777, 0), (self.home, 0o700, VICTIM), (self.marks, 0o777, 0)):
            folder.mkdir()
            folder.chmod(mode)
            os.chown(folder, owner, owner)
        self.work = self.shared / "x" / "y"
        self.work.mkdir(parents=True)
        (self.work / "train.py").write_text("print('trained')\n")
        give(self.shared / "x", VICTIM)

    def run(self, *words: str, cwd: Path | None = None, uid: int = VICTIM, **variables: str) -> Done:
        """A command of the victim's."""
        argv = ["setpriv", f"--reuid={uid}", f"--regid={uid}", "--clear-groups", CLUSTERDDP, *words]
        env = {"HOME": str(self.home), "PATH": os.environ["PATH"], **variables}
        done = subprocess.run(
            argv, cwd=cwd or self.work, env=env, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False
        )
        return Done(code=done.returncode, out=done.stdout, err=done.stderr)

    def plant(self, folder: Path, owner: int, *names: str) -> Path:
        """An inventory, and what names it: ``project.json``, ``pyproject.toml`` or both; the inventory's path."""
        program = folder / "python"
        program.write_text(f'#!/bin/sh\ntouch {self.marks}/$(id -u)\nexec /usr/bin/env python3 "$@"\n')
        program.chmod(0o755)
        inventory = folder / "inv.yaml"
        variables = f"{{ansible_connection: local, ansible_python_interpreter: {program}}}"
        inventory.write_text(f"all: {{hosts: {{n: {variables}}}}}\n")
        if "project.json" in names:
            (folder / ".clusterddp").mkdir()
            data = {"id": "0123456789", "inventory": str(inventory), "limit": None}
            (folder / ".clusterddp" / "project.json").write_text(json.dumps(data))
        if "pyproject.toml" in names:
            (folder / "pyproject.toml").write_text('[tool.clusterddp]\ninventory = "inv.yaml"\n')
        for name in ("inv.yaml", "python", ".clusterddp", "pyproject.toml"):
            if (folder / name).exists():
                give(folder / name, owner)
        return inventory

    @property
    def ran(self) -> bool:
        """Whether a planted program has run."""
        return any(self.marks.iterdir())


def give(path: Path, uid: int) -> None:
    for one in (path, *path.rglob("*")):
        os.chown(one, uid, uid, follow_symlinks=False)
