"""Two runs compared and one repeated, through the command line, on two hosts."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest

from tests.integration.cli import User
from tests.with_torch import need_torch

if TYPE_CHECKING:
    from pathlib import Path

    from tests.lab import Lab

need_torch()
pytestmark = [pytest.mark.torch, pytest.mark.usefixtures("lab_left_clean")]

SCRIPT = """
import os, sys
from settings import LR
print("lr", LR, "of", os.environ["WHO"], os.environ["API_TOKEN"], sys.argv[1:], os.getcwd()[-4:], flush=True)
"""


def test_two_runs_are_compared_line_by_line_and_the_first_one_repeated(lab: Lab, tmp_path: Path) -> None:
    user = User(tmp_path)
    user.up(lab.write_inventory(user.folder / "inventory.yaml", hosts=[host.name for host in lab.hosts[:2]]))
    user.write("exps/train.py", SCRIPT)
    user.write("exps/settings.py", "LR = 1\n")
    user.write(".env", "hunter2")
    token = {"API_TOKEN": "hunter2"}
    absolute = str(user.folder / "exps/train.py")
    words = ("--env", "WHO=me", "--secret", "API_TOKEN", "--name", "first", absolute, "a b")
    first = user.run("run", *words, cwd="exps", env=token)
    assert first.code == 0, first.err
    assert re.search(r"^clusterddp: code [0-9a-f]{6} \(3 files\)$", first.err, re.MULTILINE)
    user.write("exps/settings.py", "LR = 2\n")
    second = user.run("run", "--env", "WHO=you", "--secret", "API_TOKEN", "train.py", cwd="exps", env=token)
    assert re.search(r"^clusterddp: code [0-9a-f]{6} \(1 file changed\)$", second.err, re.MULTILINE)

    compared = user.run("runs", "--diff", "first", second.run)
    rows = [line.split() for line in compared.lines]
    assert [row[0] for row in rows[:4]] == ["what", "code", "arguments", "variable_WHO"]
    assert rows[3][1:] == ["me", "you"]
    name = "exps/settings.py"
    diff = [f"--- a/{name}", f"+++ b/{name}", "@@ -1 +1 @@", "-LR = 1", "+LR = 2"]
    assert compared.lines[4:] == [f"changed {name}", *diff]
    told = user.run("runs", "--diff", "first", second.run, "--json").json
    assert [one["what"] for one in told["differences"]] == ["code", "arguments", "variable WHO"]

    asked = user.run("run", "--again", "first")
    assert (asked.code, "API_TOKEN is not set" in asked.err) == (125, True)
    again = user.run("run", "--again", "first", env=token)
    assert again.code == 0, again.err
    said = {one.text for one in again.workers}
    assert said == {one.text for one in first.workers} == {"lr 1 of me hunter2 ['a b'] exps"}
    assert user.run("runs", "--diff", first.run, again.run).lines == []
    assert (user.folder / "exps/settings.py").read_text() == "LR = 2\n"
    kept = [path.read_bytes() for path in (user.folder / ".clusterddp").rglob("*") if path.is_file()]
    assert not any(b"hunter2" in data for data in kept)

    refused = user.run("run", "--again", "first", "--nnodes", "1", "train.py")
    assert (refused.code, "--nnodes beside --again" in refused.err) == (125, True)
