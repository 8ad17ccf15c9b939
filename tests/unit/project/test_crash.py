from __future__ import annotations

import stat
from typing import TYPE_CHECKING

import pytest

from clusterddp.errors import HelperError, HostsError
from clusterddp.project import crash
from clusterddp.project.project import Project, find
from clusterddp.remote.shared.text.redaction import HIDDEN

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def project(tmp_path: Path) -> Project:
    return find(tmp_path, {})


@pytest.fixture(autouse=True)
def _nothing_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(crash, "_secrets", set())
    monkeypatch.setattr(crash, "_files_by_trace", {})


def raised(error: BaseException) -> BaseException:
    try:
        raise error
    except BaseException as caught:  # noqa: BLE001 - with its traceback
        return caught


def command_of(*words: str) -> str:
    text = crash.crash_text(KeyError("x"), argv=words)
    return next(line for line in text.splitlines() if line.startswith("command")).split(None, 1)[1]


def test_a_crash_file_is_private_and_holds_versions_command_and_traceback(project: Project) -> None:
    path = crash.write_crash(raised(KeyError("spool")), during="check torch", argv=["runs", "--all"], project=project)
    assert path is not None
    assert path.parent == project.folder / "crashes"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    text = path.read_text()
    for part in ("clusterddp 0.", "python ", "paramiko ", "clusterddp runs --all", "check torch", "in raised"):
        assert part in text, part
    assert text.rstrip().endswith("KeyError: 'spool'")


def test_the_tracebacks_of_hosts_are_in_it_whatever_error_carries_them() -> None:
    parts = [HelperError(name, "KeyError: 'x'", trace=f"Traceback of {name}") for name in ("gpu01", "gpu02")]
    error = RuntimeError("wrapped")
    error.__cause__ = HostsError(parts)
    text = crash.crash_text(error)
    assert "On gpu01:\nTraceback of gpu01\n" in text
    assert "On gpu02:\nTraceback of gpu02\n" in text
    assert list(crash.host_traces(ValueError("none"))) == []


@pytest.mark.parametrize(
    ("words", "shown"),
    [
        (["run", "--env", "A=b=c", "--env=D=e", "--env", "F", "x.py"], "run --env A=*** --env=D=*** --env F x.py"),
        (["run", "--secret", "WANDB_API_KEY", "x.py"], "run --secret WANDB_API_KEY x.py"),
        (["run", "x.py", "--hub-token", "hf_1", "--lr", "3"], "run x.py --hub-token *** --lr 3"),
        (["run", "x.py", "--api_key=k", "--key-file=k", "token=t"], "run x.py --api_key=*** --key-file=k token=***"),
        (["run", "x.py", "--tracker", "https://me:pw@host/x"], "run x.py --tracker https://me:***@host/x"),
    ],
)
def test_the_command_is_shown_without_values_that_are_secret(words: list[str], shown: str) -> None:
    assert command_of(*words).replace("'", "").replace(HIDDEN, "***") == f"clusterddp {shown}"


def test_values_of_secrets_are_nowhere_in_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WANDB_API_KEY", "0123456789abcdef")
    monkeypatch.setenv("PLAIN", "harmless-value")
    crash.hide_secrets(["pin", "two\nlines"])
    error = HelperError("gpu01", "got 0123456789abcdef", trace="KeyError: 'two\\nlines' pin")
    text = crash.crash_text(raised(error), argv=["run", "x.py", "0123456789abcdef", "harmless-value"])
    for value in ("0123456789abcdef", "two", "pin"):
        assert value not in text
    assert "harmless-value" in text


def test_only_the_last_crash_files_are_kept(project: Project) -> None:
    written = [crash.write_crash(ValueError(str(number)), project=project) for number in range(crash.MAX_FILES + 3)]
    assert sorted((project.folder / "crashes").iterdir()) == written[3:]


def test_where_no_crash_file_can_be_written_there_is_none(project: Project) -> None:
    project.folder.write_text("a file where the folder belongs")
    assert crash.write_crash(ValueError("x"), project=project) is None


def test_a_bug_of_a_host_is_written_once_for_all_hosts_and_again_where_its_file_is_gone(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(project.root)
    folder = project.folder / "crashes"

    def told(host: str, trace: str) -> str:
        return crash.crash_of_host(HelperError(host, "KeyError: 'x'", trace=trace))

    first = told("gpu01", "Traceback of all")
    (path,) = folder.iterdir()
    assert first == f"please report it with .clusterddp/crashes/{path.name}" == told("gpu02", "Traceback of all")
    path.unlink()
    assert told("gpu01", "Traceback of all") != first
    assert len(list(folder.iterdir())) == 1
    assert told("gpu01", "") == ""


def test_bugs_of_hosts_however_many_do_not_displace_our_own(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(project.root)
    mine = crash.write_crash(ValueError("mine"), project=project)
    remedies = [
        crash.crash_of_host(HelperError("gpu01", "KeyError: 'x'", trace=f"Traceback {number}"))
        for number in range(crash.MAX_FILES + 3)
    ]
    assert len(list((project.folder / "crashes").iterdir())) == 1 + crash.MAX_FILES_OF_HOSTS
    assert mine is not None
    assert mine.exists()
    assert remedies[-1] == "with -v the host's traceback is shown"
    assert crash.crash_of_host(HelperError("gpu02", "KeyError: 'x'", trace="Traceback 0")) == remedies[0]


def test_where_a_bug_of_a_host_cannot_be_written_its_remedy_is_v(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(project.root)
    project.folder.write_text("a file where the folder belongs")
    remedy = crash.crash_of_host(HelperError("gpu01", "KeyError: 'x'", trace="Traceback of nobody"))
    assert remedy == "with -v the host's traceback is shown"


def test_an_error_that_cannot_be_shown_still_leaves_a_crash_file(project: Project) -> None:
    class UnshowableError(Exception):
        def __str__(self) -> str:
            raise RuntimeError

    assert crash.write_crash(raised(UnshowableError()), project=project) is not None
