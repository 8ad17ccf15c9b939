"""A bug of ours: one line, a crash file, and a code that is not the script's own."""

from __future__ import annotations

import re
import stat
import threading
from typing import TYPE_CHECKING, Any

import pytest

from clusterddp.api import find_runs
from clusterddp.api.cluster import Cluster
from clusterddp.cli.main import main
from clusterddp.hosts.client import Host
from clusterddp.hosts.connections import Connections
from tests.unit.cli_help import folder, said

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["folder"]  # fixture

FOUND = re.compile(
    r"internal error: KeyError: 'provoked' \(test_internal_error\.py:\d+\); please report it with (\.clusterddp/\S+)"
)


def bug(*_: object, **__: object) -> Any:
    raise KeyError("provoked")


@pytest.mark.parametrize(
    ("argv", "code"),
    [
        (["run", "--detach", "train.py"], 125),
        (["logs", "--follow"], 125),
        (["logs", "-tf"], 125),
        (["logs"], 1),
        (["status"], 1),
        (["up", "gpu01"], 1),
        (["doctor"], 1),
    ],
    ids=str,
)
def test_it_is_one_line_and_a_private_crash_file(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], argv: list[str], code: int
) -> None:
    for place, name in ((Cluster, "connect"), (find_runs, "gather"), (Connections, "open_all")):
        monkeypatch.setattr(place, name, bug)
    ended, lines = said(capsys, *argv)
    assert ended == code
    match = FOUND.fullmatch(lines[-1])
    assert match, lines
    assert [line for line in lines[:-1] if not line.startswith("cluster: ")] == []
    path = folder / match[1]
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    text = path.read_text()
    assert f"clusterddp {' '.join(argv)}\n" in text
    assert "in bug\n" in text


def test_one_in_the_pool_that_works_on_many_hosts_ends_there_too(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(Host, "open", bug)
    code, lines = said(capsys, "status")
    assert (code, len(lines)) == (1, 2)
    assert FOUND.fullmatch(lines[1]), lines
    assert len(list((folder / ".clusterddp" / "crashes").iterdir())) == 1


def test_one_in_a_thread_that_nobody_waits_for_is_told_and_the_command_keeps_its_code(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def beside(*_: object) -> list[Any]:
        thread = threading.Thread(target=bug)
        thread.start()
        thread.join()
        return []

    monkeypatch.setattr(Cluster, "list_runs", beside)
    monkeypatch.setattr(Connections, "hosts", ["one that answers"])
    before = threading.excepthook
    code, lines = said(capsys, "runs", "--all")
    assert code == 0
    assert len([line for line in lines if FOUND.fullmatch(line)]) == 1, lines
    assert len(list((folder / ".clusterddp" / "crashes").iterdir())) == 1
    assert threading.excepthook is before


def test_where_no_crash_file_can_be_written_all_of_it_is_on_stderr(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(Cluster, "list_runs", bug)
    (folder / ".clusterddp").mkdir(exist_ok=True)
    (folder / ".clusterddp" / "crashes").write_text("a file where the folder belongs")
    code, lines = said(capsys, "runs")
    assert code == 1
    assert re.fullmatch(r"internal error: KeyError: 'provoked' \(test_internal_error\.py:\d+\)", lines[-1])
    assert "Traceback (most recent call last):" in lines
    assert "KeyError: 'provoked'" in lines


def test_values_of_secrets_are_neither_on_the_line_nor_in_the_file(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def leak(*_: object, **__: object) -> Any:
        raise ValueError("wrong token 0123456789abcdef")

    monkeypatch.setenv("WANDB_API_KEY", "0123456789abcdef")
    monkeypatch.setattr(Cluster, "start", leak)
    argv = ["run", "--detach", "--env", "A_PASSWORD=hunter22", "train.py", "--token", "hf_secret"]
    code, lines = said(capsys, *argv)
    assert code == 125
    (crash,) = (folder / ".clusterddp" / "crashes").iterdir()
    text = crash.read_text() + "\n".join(lines)
    for value in ("0123456789abcdef", "hunter22", "hf_secret"):
        assert value not in text
    assert "ValueError: wrong token ********" in text


def test_a_bug_of_long_many_lined_words_is_one_line(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def shout(*_: object) -> Any:
        raise ValueError("\x1b[2J" + "x" * 10_000 + "\nmore")

    monkeypatch.setattr(Cluster, "list_runs", shout)
    _, lines = said(capsys, "runs")
    assert len(lines) == 2
    assert len(lines[1]) < 500
    assert lines[1].isprintable()
    assert folder


def test_an_exit_is_no_bug(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def leave(*_: object) -> Any:
        raise SystemExit(3)

    monkeypatch.setattr(Cluster, "list_runs", leave)
    with pytest.raises(SystemExit) as ended:
        main(["runs"])
    assert ended.value.code == 3
    assert not (folder / ".clusterddp").exists()
