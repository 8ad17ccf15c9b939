"""Without an inventory: clusterddp installed apart from torch, as by pipx and uv, trains with the user's Python."""

from __future__ import annotations

import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

from tests.integration.cli import User
from tests.with_torch import need_torch

need_torch()

TRAIN = """
import sys
import torch
import torch.distributed as dist
dist.init_process_group("gloo")
total = torch.ones(1)
dist.all_reduce(total)
print("prefix", sys.prefix, int(total))
dist.destroy_process_group()
"""


def installed(user: User, place: str) -> Path:
    """Clusterddp in an environment of its own without torch below the user's home, its command in ``~/.local/bin``."""
    venv = user.home / place / "clusterddp"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(venv)], check=True)
    packages = next(venv.glob("lib/python*/site-packages"))
    for one in Path(sysconfig.get_path("purelib")).iterdir():
        if not one.name.startswith("torch"):
            (packages / one.name).symlink_to(one)
    program = venv / "bin" / "clusterddp"
    program.write_text(f"#!{venv}/bin/python\nimport sys\nfrom clusterddp.cli.main import main\nsys.exit(main())\n")
    program.chmod(0o755)
    link = user.home / ".local" / "bin" / "clusterddp"
    link.parent.mkdir(parents=True)
    link.symlink_to(program)
    return link


@pytest.mark.parametrize("place", [".local/share/pipx/venvs", ".local/share/uv/tools"])
def test_a_clusterddp_installed_as_a_tool_trains_with_the_active_environment(tmp_path: Path, place: str) -> None:
    user = User(tmp_path)
    program = installed(user, place)
    user.write("train.py", TRAIN)
    environ = {**user.env, "VIRTUAL_ENV": sys.prefix, "PATH": f"{program.parent}:{sys.prefix}/bin:/usr/bin:/bin"}
    done = subprocess.run(
        ["clusterddp", "run", "--no-doctor", "train.py"],
        cwd=user.folder, env=environ, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout.count(f"prefix {sys.prefix} 2") == 2, done.stdout
    assert f"2 nodes on this machine, {sys.prefix}/bin/python (VIRTUAL_ENV)" in done.stderr.splitlines()[0]


def test_without_any_torch_the_line_says_what_to_do(tmp_path: Path) -> None:
    user = User(tmp_path)
    program = installed(user, ".local/share/pipx/venvs")
    user.write(".venv/bin/python", "")
    done = subprocess.run(
        [str(program), "exec", "true"],
        cwd=user.folder, env={**user.env, "PATH": "/usr/bin:/bin"}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    first, second = done.stderr.splitlines()[:2]
    assert "no Python here finds torch: activate the environment that has it, or set CLUSTERDDP_PYTHON" in first
    assert "the project's .venv is not active" in second
