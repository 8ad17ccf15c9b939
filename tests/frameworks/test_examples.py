"""The jobs of examples/ by the lines of examples/README.md, on two nodes of this machine; given again, they go on."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.frameworks import run_notebook
from tests.wheels_made import need_uv

if TYPE_CHECKING:
    from tests.integration.cli import Done, User

PYTHON = os.environ.get("CLUSTERDDP_FRAMEWORKS", "")
if not PYTHON:
    pytest.skip("only in make test-frameworks", allow_module_level=True)

pytestmark = pytest.mark.torch
ROOT = Path(__file__).parents[2]
LINES: list[str] = re.findall(
    r"^\| .* \| `clusterddp (.*)` \|$", (ROOT / "examples/README.md").read_text("utf-8"), re.MULTILINE
)
# Of a job that goes on: the beginning of its line, how its line says how far to go, and what it then says.
GOES_ON = {
    "with_accelerate.py": ("--steps 20", "--steps 30", "resumed after step 20"),
    "with_trainer.py": ("--steps 20", "--steps 30", "resumed from checkpoint-20"),
    "with_lightning.py": ("--epochs 2", "--epochs 3", "ended after 96 steps"),
    "fsdp.py": ("--steps 20", "--steps 30", "resumed after step 20, now 2 workers"),
}
ENDS = {"tiny.train": "small: loss ", "sweep.py": "trial 2 rate 0.1 loss 0.00", "locked/train.py": "locked: loss 0."}


def line_of(name: str) -> str:
    """Return the command line of one example in examples/README.md."""
    (line,) = [line for line in LINES if name in line]
    return line


def given(here: User, line: str) -> Done:
    """Run a command line of examples/README.md, with `out` as a folder that both nodes see."""
    done = here.run(*[str(here.home / "out") if word == "out" else word for word in shlex.split(line)])
    if done.code:
        pytest.fail(f"{line}: code {done.code}: {done.out[-4000:]}{done.err[-2000:]}", pytrace=False)
    assert "Traceback" not in done.out, done.out
    return done


def losses(done: Done) -> list[float]:
    return [float(text) for text in re.findall(r"loss (\d+\.\d+)", done.out)]


def test_every_line_of_the_page_is_given() -> None:
    assert sorted(line for name in (*GOES_ON, *ENDS) for line in [line_of(name)]) == sorted(LINES)


@pytest.mark.parametrize("name", GOES_ON)
def test_a_job_trains_and_goes_on_from_its_checkpoint(here: User, name: str) -> None:
    so_far, further, says = GOES_ON[name]
    line = line_of(name)
    first = given(here, line)
    assert {worker.rank for worker in first.workers} >= {0}
    assert "resumed" not in first.out
    second = given(here, line.replace(so_far, further))
    assert says in second.out
    assert losses(second)[-1] < losses(first)[0]


@pytest.mark.parametrize("name", ENDS)
def test_a_job_ends_well(here: User, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if "locked" in name:
        here.env["XDG_CACHE_HOME"] = str(need_uv(monkeypatch))
        lock, wheels = here.folder / "examples/locked/requirements.txt", Path(PYTHON).parents[1] / "wheels"
        here_alone = f"--no-index\n--find-links {wheels}"  # make test-frameworks has downloaded them
        lock.write_text(re.sub("--extra-index-url .*", here_alone, lock.read_text("utf-8")), "utf-8")
    done = given(here, line_of(name))
    assert ENDS[name] in done.out


def test_a_notebook_starts_watches_plots_and_stops_a_run(here: User) -> None:
    env = {**here.env, "CLUSTERDDP_PYTHON": PYTHON, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [PYTHON, run_notebook.__file__, "notebook.ipynb"],
        cwd=here.folder / "examples",
        env=env,
        capture_output=True,
        text=True,
        timeout=here.limit,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(r"^not looking any longer; \w{10} is running$", done.stdout, re.MULTILINE)
    assert "image/png" in done.stdout
    assert "local0 proved empty\nlocal1 proved empty" in done.stdout
