"""Real shells complete our words from local files; nothing wrong there says a word or takes long."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from clusterddp.project.project import find

CLUSTERDDP = Path(sys.executable).with_name("clusterddp")
INVENTORY = (
    "all:\n  children:\n    rack:\n      hosts:\n        gpu[00:02]:\n    spares:\n      hosts:\n        old9:\n"
)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "inventory.yaml").write_text(INVENTORY)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("XDG_STATE_HOME", raising=False)
    project = find(tmp_path)
    project.remember(tmp_path / "inventory.yaml", None)
    state = project.folder
    names = {"aaaaaaaaaa": "night", "bbbbbbbbbb": None}
    of_all = {"hosts": ["gpu00"], "world_size": 3}
    lines = [json.dumps({"run": run, "name": name, **of_all}) for run, name in names.items()]
    (state / "runs.jsonl").write_text("\n".join([*lines, "damaged"]))
    return tmp_path


FILES = ["-o", "default"]  # bash's own completion, where nothing else is offered


def complete_commands(folder: Path, line: str) -> list[str]:
    """What bash offers for the last word of the line."""
    words = line.split(" ")
    script = f"""
        source <(_CLUSTERDDP_COMPLETE=bash_source {shlex.quote(str(CLUSTERDDP))})
        compopt() {{ echo "$*"; }}
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
        ("clusterddp logs --rank ", ["0", "1", "2"]),
        ("clusterddp pull --run night --rank 0,", ["0,0", "0,1", "0,2"]),
        ("clusterddp stop ni", ["night"]),
        ("clusterddp wh", ["why"]),
        ("clusterddp why ni", [*FILES, "night"]),
        ("clusterddp debug ni", ["night"]),
        ("clusterddp signal night US", ["USR1", "USR2"]),
        ("clusterddp doctor --only Net", ["Network"]),
        ("clusterddp shell ", ["gpu00", "gpu01", "gpu02", "old9"]),
        *((f"clusterddp {words} inv", FILES) for words in ("run", "run train.py", "up", "init", "why", "push")),
    ],
)
def test_words_are_completed_from_local_files(folder: Path, line: str, offered: list[str]) -> None:
    assert sorted(complete_commands(folder, line)) == sorted(offered)


def test_words_that_a_shell_or_terminal_would_obey_are_not_offered(folder: Path) -> None:
    names = ["$(touch${IFS}ran)", "a;b", "\x1b[2J\u202ea", "--force", "=ls", "a b", "run.1-a_b"]
    index = folder / ".clusterddp" / "runs.jsonl"
    index.write_text("\n".join(json.dumps({"run": "", "name": name, "hosts": ["gpu00"]}) for name in names))
    for name in ("$(ran).yml", "hosts.yml", "own.yml"):
        (folder / name).touch()
    assert complete_commands(folder, "clusterddp stop ") == ["run.1-a_b"]
    offered = complete_commands(folder, "clusterddp up --playbook ")
    assert offered[0] == "hosts.yml"
    assert sorted(offered[-3:]) == ["./hosts.yml", "inventory.yaml", "own.yml"]


@pytest.mark.parametrize("damage", ["inventory.yaml", ".clusterddp/project.json", ".clusterddp/runs.jsonl"])
def test_what_is_damaged_gives_no_words_and_no_message(folder: Path, damage: str) -> None:
    (folder / damage).write_text("{:")
    found = [complete_commands(folder, "clusterddp logs --host gpu"), complete_commands(folder, "clusterddp logs ni")]
    assert [] in found


def test_hosts_of_an_inventory_without_consent_are_not_completed(folder: Path) -> None:
    (folder / "other.yaml").write_text("all: {hosts: {gpu77: }}\n")
    state = folder / ".clusterddp" / "project.json"
    state.write_text(json.dumps({**json.loads(state.read_text()), "inventory": str(folder / "other.yaml")}))
    assert complete_commands(folder, "clusterddp status --limit g") == []
    assert complete_commands(folder, "clusterddp status -i other.yaml --limit g") == ["gpu77"]
    state.unlink()
    (folder / "pyproject.toml").write_text('[tool.clusterddp]\ninventory = "other.yaml"\n')
    assert complete_commands(folder, "clusterddp status --limit g") == []


@pytest.mark.skipif(not shutil.which("fish"), reason="fish is not installed")
def test_fish_completes_by_the_line_of_the_readme(folder: Path) -> None:
    script = "_CLUSTERDDP_COMPLETE=fish_source clusterddp | source; complete -C 'clusterddp stop ni'"
    assert shell(folder, "fish", "--no-config", "-c", script).split() == ["night"]


# An interactive zsh at a terminal of its own, where the key is pressed.
ZSH = r"""
zmodload zsh/zpty
zpty terminal zsh -f -i
zpty -w terminal 'autoload -Uz compinit && compinit -u -D; eval "$(_CLUSTERDDP_COMPLETE=zsh_source clusterddp)"'
zpty -w -n terminal $'clusterddp stop ni\t'
zpty -r terminal seen '*stop night *' && print completed
"""


@pytest.mark.skipif(not shutil.which("zsh"), reason="zsh is not installed")
def test_zsh_completes_by_the_line_of_the_readme(folder: Path) -> None:
    assert shell(folder, "zsh", "-f", "-c", ZSH) == "completed\n"


def shell(folder: Path, *argv: str) -> str:
    env = {"HOME": str(folder), "PATH": f"{CLUSTERDDP.parent}:{os.environ['PATH']}", "TERM": "dumb"}
    done = subprocess.run(argv, cwd=folder, env=env, capture_output=True, text=True, check=True, timeout=60)
    assert done.stderr == ""
    return done.stdout
