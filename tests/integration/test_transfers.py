"""sync, push and pull as a user gives them, in this process, over real helpers on hosts with homes of their own."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pytest

from clusterddp.cli.main import main
from tests.unit.sync_help import content, write

if TYPE_CHECKING:
    from pathlib import Path

HOSTS = ("gpu00", "gpu01", "gpu02")


@dataclass(frozen=True)
class User:
    """A project folder, which is the current one, and the hosts' workdirs below ``place``."""

    place: Path
    folder: Path
    capsys: pytest.CaptureFixture[str]

    def work(self, host: str) -> Path:
        return self.place / host / "work"

    def __call__(self, *argv: str) -> tuple[int, list[str], list[str]]:
        """The exit code of a command, its lines on stdout, and our own on stderr but the cluster's."""
        with pytest.raises(SystemExit) as ended:
            main(list(argv))
        out, err = self.capsys.readouterr()
        assert all(line.startswith("clusterddp: ") for line in err.splitlines()), err
        notes = [line.removeprefix("clusterddp: ") for line in err.splitlines()]
        code = ended.value.code
        assert isinstance(code, int)
        return code, out.splitlines(), [note for note in notes if not note.startswith("cluster:")]


@pytest.fixture
def user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> User:
    folder = tmp_path / "project"
    write(folder, **{"train.py": "print(1)", "pkg/model.py": "A = 1"})
    lines = ["all:", "  hosts:"]
    for name in HOSTS:
        here = tmp_path / name
        lines += [f"    {name}:", "      ansible_connection: local"]
        lines += [f"      clusterddp_{key}: {here / value}" for key, value in (("workdir", "work"), ("state", "state"))]
    (tmp_path / "inventory.yaml").write_text("\n".join(lines) + "\n")
    monkeypatch.chdir(folder)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("CLUSTERDDP_INVENTORY", str(tmp_path / "inventory.yaml"))
    return User(place=tmp_path, folder=folder, capsys=capsys)


def project(user: User) -> dict[str, str]:
    return {name: text for name, text in content(user.folder).items() if not name.startswith(".clusterddp/")}


def test_sync_says_what_would_change_then_changes_it_then_finds_nothing(user: User) -> None:
    write(user.folder, **{".env": "SECRET=1"})
    first = ["gpu[00:02]: would be 2 new; 13 bytes to send", "  + pkg/model.py", "  + train.py"]
    assert user("sync", "--dry-run") == (0, first, ["not synced, they look like keys: .env"])
    assert not user.work("gpu00").exists()
    code, out, notes = user("sync")
    assert (code, out[0]) == (0, "gpu[00:02]: 2 new; 13 bytes in these files")
    assert notes[-1].endswith("is on 3 hosts")
    write(user.folder, **{"train.py": "print(2)"})
    (user.folder / "pkg/model.py").unlink()
    assert user("sync", "--limit", "gpu01")[:2] == (
        0,
        ["gpu01: 1 changed, 1 removed; 8 bytes in these files", "  ~ train.py", "  - pkg/model.py"],
    )
    code, out, _ = user("sync", "--dry-run")
    assert [line for line in out if not line.startswith(" ")] == [
        "gpu00, gpu02: would be 1 changed, 1 removed; 8 bytes to send",
        "gpu01: nothing to change",
    ]
    user("sync")
    assert [content(user.work(name)) for name in HOSTS] == [{"train.py": "print(2)"}] * 3
    assert user("sync")[1] == ["gpu[00:02]: nothing to change"]


def test_sync_refuses_while_a_live_run_has_other_code_there(user: User) -> None:
    from clusterddp.remote.sync.live import mark  # noqa: PLC0415 - stands in for a supervisor

    user("sync")
    state, workdir = str(user.place / "gpu01/state"), bytes(user.work("gpu01"))
    marker = mark(state, workdir, "r1", "gpu01", os.getpid())
    assert user("sync")[0] == 0
    write(user.folder, **{"train.py": "print(2)"})
    for words in (("sync",), ("sync", "--dry-run")):
        code, out, notes = user(*words)
        assert (code, out) == (1, [])
        assert notes[-1] == (
            f"gpu01: run r1 is live in {user.work('gpu01')} with other code; "
            "stop it first, or start yours: `run` takes other code beside it"
        )
    assert [content(user.work(name))["train.py"] for name in HOSTS] == ["print(1)"] * 3
    os.unlink(marker)  # noqa: PTH108 - bytes
    assert user("sync")[0] == 0
