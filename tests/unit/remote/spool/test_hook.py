"""The start-up hook's byte code lies in a spool from the start: no worker compiles it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from clusterddp.remote.spool.layout import Spool
from tests.unit.plan_made import made_spool


def test_python_takes_it_where_it_may_write_none_of_its_own(tmp_path: Path) -> None:
    spool = Spool(str(tmp_path / "runs" / "run1" / "1" / "0-h"))
    assert made_spool(spool)
    env = {"PYTHONPATH": spool.path("hook"), "PYTHONDONTWRITEBYTECODE": "1", "PATH": os.environ["PATH"]}
    argv = [sys.executable, "-v", "-c", "pass"]
    done = subprocess.run(argv, env=env, capture_output=True, text=True, timeout=60, check=True)
    (compiled,) = Path(spool.path("hook", "__pycache__")).iterdir()
    assert f"# code object from '{compiled}'" in done.stderr
    assert compiled.stat().st_mode & 0o777 == 0o600
