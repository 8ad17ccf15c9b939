"""Bugs on a host, and in the thread that listens to it: each reaches who waits for the answer, and a crash file."""

from __future__ import annotations

import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from clusterddp.errors import HelperError, UnreachableError
from clusterddp.hosts.client import Host
from clusterddp.project import crash as crash_files
from tests.integration.real_helper import Shell, entry, opened, with_test_operations

if TYPE_CHECKING:
    from collections.abc import Iterator

    from clusterddp.hosts.ssh.pipes import ChildPipe
    from clusterddp.inventory import HostEntry

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="hosts are Linux")


@pytest.fixture
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Host]:
    """A helper of the test's own; crash files go into an empty project."""
    (tmp_path / "project").mkdir()
    monkeypatch.chdir(tmp_path / "project")
    monkeypatch.setattr(crash_files, "_files_by_trace", {})
    with opened(tmp_path / "state", with_test_operations()) as host:
        yield host


def test_an_unforeseen_error_says_its_kind_and_names_a_crash_file_with_the_hosts_traceback(host: Host) -> None:
    with pytest.raises(HelperError, match="here: ValueError: \U0001f525") as caught:
        host.call("fail")
    (crash,) = Path(".clusterddp/crashes").iterdir()
    assert caught.value.remedy == f"please report it with .clusterddp/crashes/{crash.name}"
    _, _, told = crash.read_text().partition("On here:\n")
    assert "in run_child" in told
    assert "in fail\n" in told
    assert "\nValueError: \U0001f525" in told
    with pytest.raises(HelperError) as again:
        host.call("fail")
    assert again.value.remedy == caught.value.remedy


def test_what_the_system_refuses_a_host_is_an_error_without_a_crash_file(host: Host) -> None:
    with pytest.raises(HelperError, match="here: BrokenPipeError: a pipe of its own") as caught:
        host.call("broken", timeout=20)
    assert (caught.value.remedy, list(Path().iterdir())) == ("", [])


def test_a_bug_of_the_helper_itself_is_told_before_it_ends(host: Host) -> None:
    with pytest.raises(UnreachableError, match="the helper ended: RuntimeError: the helper bursts; please report"):
        host.call("burst", timeout=20)
    (crash,) = Path(".clusterddp/crashes").iterdir()
    assert "in _handle\n" in crash.read_text().partition("On here:\n")[2]


def test_a_bug_in_the_thread_that_reads_is_raised_where_the_answer_is_awaited(tmp_path: Path) -> None:
    pipe = Shell("/bin/sh").open(entry(tmp_path))
    read = pipe.read

    def failing(size: int) -> bytes:
        data = read(size)
        if threading.current_thread().name.startswith("read "):
            raise ZeroDivisionError("a bug of the reader")
        return data

    pipe.read = failing  # type: ignore[method-assign]

    class Opener:
        def open(self, _entry: HostEntry, _command: str) -> ChildPipe:
            return pipe

    with (
        Host.open(entry(tmp_path), Opener()) as host,
        pytest.raises(ZeroDivisionError, match="a bug of the reader"),
    ):
        host.call("clock", timeout=20)
