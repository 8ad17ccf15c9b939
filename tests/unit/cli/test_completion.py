"""A real bash completes our words from local files; nothing wrong there says a word or takes long."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

CLUSTERDDP = Path(sys.executable).with_name("clusterddp")
INVENTORY = (
    "all:\n  children:\n    rack:\n      hosts:\n        gpu[00:02]:\n    spares:\n      hosts:\n        old9:\n"
)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "inventory.yaml").write_text(INVENTORY)
    state = tmp_path / ".clusterddp"
    state.mkdir()
    (state / "project.json").write_text(f'{{"id": "0123456789", "inventory": "{tmp_path}/inventory.yaml"}}')
    names = {"aaaaaaaaaa": "night", "bbbbbbbbbb": None}
    lines = [json.dumps({"run": run, "name": name, "hosts": ["gpu00"]}) for run, name in names.items()]
    (state / "runs.jsonl").write_text("\n".join([*lines, "damaged"]))
    return tmp_path


def completed(folder: Path, line: str) -> list[str]:
    """What bash offers for the last word of the line."""
    words = line.split(" ")
    script = f"""
        source <(_CLUSTERDDP_COMPLETE=bash_source {shlex.quote(str(CLUSTERDDP))})
        COMP_WORDS=({" ".join(map(shlex.quote, words))}) COMP_CWORD={len(words) - 1} COMPREPLY=()
        _clusterddp_completion {shlex.quote(str(CLUSTERDDP))}
        printf '%s\\n' "${{COMPREPLY[@]}}"
    """
    env = {"HOME": str(folder), "PATH": f"{CLUSTERDDP.parent}:{os.environ['PATH']}"}
    done = subprocess.run(["bash", "-c", script], cwd=folder, env=env, capture_output=True, text=True, check=True)
    assert done.stderr == ""
    return done.stdout.split()


@pytest.mark.parametrize(
    ("line", "offered"),
    [
        ("clusterddp st", ["status", "stop"]),
        ("clusterddp status --limit g", ["gpu00", "gpu01", "gpu02"]),
        ("clusterddp status --limit gpu00,sp", ["gpu00,spares"]),
        ("clusterddp logs ", ["bbbbbbbbbb", "night", "aaaaaaaaaa"]),
        ("clusterddp stop ni", ["night"]),
        ("clusterddp signal night US", ["USR1", "USR2"]),
        ("clusterddp doctor --only Net", ["Network"]),
    ],
)
def test_words_are_completed_from_local_files(folder: Path, line: str, offered: list[str]) -> None:
    assert sorted(completed(folder, line)) == sorted(offered)


@pytest.mark.parametrize("damage", ["inventory.yaml", ".clusterddp/project.json", ".clusterddp/runs.jsonl"])
def test_what_is_damaged_gives_no_words_and_no_message(folder: Path, damage: str) -> None:
    (folder / damage).write_text("{:")
    found = [completed(folder, "clusterddp logs --host gpu"), completed(folder, "clusterddp logs ni")]
    assert [] in found


def test_zsh_and_fish_get_their_own_script(folder: Path) -> None:
    for shell in ("zsh", "fish"):
        env = {"HOME": str(folder), "PATH": os.environ["PATH"], "_CLUSTERDDP_COMPLETE": f"{shell}_source"}
        done = subprocess.run([CLUSTERDDP], env=env, capture_output=True, text=True, check=True)
        assert "_CLUSTERDDP_COMPLETE" in done.stdout
