"""What docs/metrics.md tells of Weights & Biases, MLflow and TensorBoard, with the real packages on two local nodes."""

from __future__ import annotations

import json
import os
import re
import shlex
import urllib.request
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.integration.cli import Done, User

if "CLUSTERDDP_FRAMEWORKS" not in os.environ:
    pytest.skip("only in make test-frameworks", allow_module_level=True)

pytestmark = pytest.mark.torch
PAGE = Path(__file__).parents[2] / "docs/metrics.md"
OFFLINE = ("WANDB_MODE=offline", "MLFLOW_ALLOW_FILE_STORE=true")
LOGS = """
import os
import mlflow
import wandb

with wandb.init(project="gpt", dir=os.environ["CLUSTERDDP_RUN_DIR"]) as tracked:
    tracked.log({"loss": 1.0})
    print("told", tracked.group, *tracked.tags)
with mlflow.start_run() as tracked:
    mlflow.log_metric("loss", 1.0)
    tags = mlflow.get_run(tracked.info.run_id).data.tags
    print("told", *sorted(f"{name}={value}" for name, value in tags.items() if name.startswith("clusterddp.")))
"""
WRITES = """
import os
from torch.utils.tensorboard import SummaryWriter
with SummaryWriter(f"runs/{os.environ['CLUSTERDDP_RUN_ID']}") as writer:
    writer.add_scalar("loss", 0.5, 1)
"""


def tracked(here: User, folder: Path, *words: str) -> Done:
    """A run that logs to both, offline."""
    env = [f"--env={value}" for value in (*OFFLINE, f"MLFLOW_TRACKING_URI=file:{folder}")]
    done = here.run("run", *env, *words)
    assert done.code == 0, done.out + done.err
    return done


def told(done: Done) -> set[str]:
    return {line.text for line in done.workers if line.text.startswith("told ")}


def test_the_lines_for_a_script_make_id_and_host_known_to_both(here: User, tmp_path: Path) -> None:
    (lines,) = re.findall(r"^```python\n(.*?)^```$", PAGE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    here.write("train.py", lines + LOGS)
    done = tracked(here, tmp_path / "mlruns", "train.py")
    wandb = {f"told {done.run} {done.run} {host}" for host in ("local0", "local1")}
    assert told(done) == wandb | {
        f"told clusterddp.host={host} clusterddp.run={done.run}" for host in ("local0", "local1")
    }
    found = here.home.glob(f".clusterddp/rundirs/{done.run}-*/wandb/*/*.wandb")
    files = {path.resolve() for path in found}  # latest-run is a link
    assert len(files) == 2
    assert all(done.run.encode() in path.read_bytes() for path in files)


def test_the_line_for_a_terminal_makes_the_name_known_to_both(here: User, tmp_path: Path) -> None:
    (line,) = re.findall(r"^    clusterddp (run (?:.*\\\n)?.*)$", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    _, *words = shlex.split(line.replace("\\\n", ""))
    here.write("train.py", LOGS)
    here.env["WANDB_API_KEY"] = "x" * 40
    done = tracked(here, tmp_path / "mlruns", *words)
    assert told(done) == {"told night night base", "told clusterddp.run=night"}


def test_tensorboard_is_seen_through_forward(here: User) -> None:
    here.write("train.py", WRITES)
    done = here.run("run", "--nnodes", "1", "train.py")
    assert done.code == 0, done.out + done.err
    served, forwarded = re.findall(r"^    clusterddp ((?:exec|forward) .*gpu00.*)$", PAGE.read_text(), re.MULTILINE)
    # On one machine both ends would be the same port; TensorBoard takes a free one, and says which.
    served = served.replace("gpu00", "local0").replace("6006", "0")
    with here.start(*shlex.split(served)) as board:
        board.wait_for("Press CTRL+C to quit")
        port = re.findall(r"http://127\.0\.0\.1:(\d+)/", board.text())[0]
        with here.start(*shlex.split(forwarded.replace("gpu00:6006", f"local0:{port}"))) as forward:
            forward.wait_for(f" is local0:{port}")
            address = forward.text().split()[0]
            with urllib.request.urlopen(f"{address}/data/plugin/scalars/tags") as answer:
                assert list(json.load(answer)) == [done.run]
            forward.interrupt()
            assert forward.end().code == 0
        board.interrupt()
        board.end()
