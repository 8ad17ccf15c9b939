"""`--notify`: a real command and a real HTTP server are told; what goes wrong is said once."""

from __future__ import annotations

import base64
import contextlib
import os
import signal
import threading
import time
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from clusterddp.cli import notify
from clusterddp.cli.main import main
from clusterddp.cli.notify import Notifier
from clusterddp.project.crash import without_secrets
from clusterddp.remote.shared.run.run_record import RunRecord
from tests.unit.hooks_served import served

if TYPE_CHECKING:
    from pathlib import Path


BEGAN = 1_700_000_000_000_000_000
RECORD = RunRecord(hosts=("gpu00", "gpu01"), run="abc", name="tiny", script="train.py", started=BEGAN)


@pytest.fixture(autouse=True)
def _clock(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time, "time_ns", lambda: BEGAN + 12_340_000_000)


def test_a_url_is_sent_each_event_as_json() -> None:
    with served() as server, contextlib.closing(Notifier(server.url, "abc", RECORD)) as notifier:
        notifier.tell("done", "succeeded")
        notifier.close()
        notifier.record = RECORD._replace(hosts=("gpu00",))  # of another attempt
        notifier.tell("lost", "gpu01 is lost")
        notifier.close()
    about = {"run": "abc", "name": "tiny", "script": "train.py", "duration": 12.3}
    assert sorted(server.told, key=lambda told: str(told["event"])) == [
        {**about, "event": "done", "text": "succeeded", "verdict": "succeeded", "hosts": ["gpu00", "gpu01"]},
        {**about, "event": "lost", "text": "gpu01 is lost", "verdict": None, "hosts": ["gpu00"]},
    ]


def test_secret_values_in_a_runs_name_and_script_are_not_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOKEN", "hunter2-token")
    record = RECORD._replace(name="of hunter2-token", script="hunter2-token.py", secrets=("TOKEN", "UNSET"))
    with served() as server, contextlib.closing(Notifier(server.url, "abc", record)) as notifier:
        notifier.tell("done", "succeeded")
        notifier.close()
        assert [(told["name"], told["script"]) for told in server.told] == [("of ********", "********.py")]


def test_user_and_password_of_a_url_are_shown_to_its_server_and_to_none_that_it_names() -> None:
    with served() as server, served() as other:
        server.codes, server.location = [302], other.url
        with contextlib.closing(
            Notifier(server.url.replace("://", "://alice:pass%20word@"), "abc", RECORD)
        ) as notifier:
            notifier.tell("done", "succeeded")
    assert server.authorized == ["Basic " + base64.b64encode(b"alice:pass word").decode()]
    assert other.authorized == [None]
    hidden = without_secrets(f"{server.authorized} pass%20word pass word")
    assert (hidden.count("pass"), hidden.count("Basic Y")) == (0, 0)


def test_ctrl_c_while_a_server_hangs_ends_the_wait_and_nothing_else(capsys: pytest.CaptureFixture[str]) -> None:
    with served() as server:
        server.hung.clear()
        notifier = Notifier(server.url, "abc", RECORD)
        notifier.tell("failed", "exit code 3")
        assert server.called.wait(20)
        interrupt = threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGINT))
        interrupt.start()
        notifier.close()  # raises nothing
        interrupt.join()
    assert capsys.readouterr().err == "clusterddp: --notify: not waited for any longer\n"


def test_reports_that_do_not_end_are_waited_for_together(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [5.0]
    waits: list[float] = []

    class Hanging:
        def join(self, timeout: float) -> None:
            waits.append(timeout)
            now[0] += timeout

    monkeypatch.setattr(notify, "time", SimpleNamespace(monotonic=lambda: now[0]))
    notifier: Any = Notifier("http://127.0.0.1:9/x", "abc", RECORD)
    notifier._threads = [Hanging(), Hanging(), Hanging()]
    notifier.close()
    assert waits == [notify.SEND_TIMEOUT, 0.0, 0.0]


@pytest.mark.parametrize(
    ("event", "about", "wanted"),
    [
        ("lost", RECORD, "abc|lost|gpu01 is $(lost)|tiny|train.py||12.3|gpu00,gpu01"),
        ("failed", RECORD, "abc|failed|gpu01 is $(lost)|tiny|train.py|gpu01 is $(lost)|12.3|gpu00,gpu01"),
        ("done", RunRecord(hosts=()), "abc|done|gpu01 is $(lost)|||gpu01 is $(lost)||"),
    ],
)
def test_a_command_has_the_event_in_its_environment(tmp_path: Path, event: str, about: RunRecord, wanted: str) -> None:
    names = ("RUN", "EVENT", "TEXT", "NAME", "SCRIPT", "VERDICT", "DURATION", "HOSTS")
    command = f'echo "{"|".join(f"$CLUSTERDDP_{name}" for name in names)}" > {tmp_path}/told'
    with contextlib.closing(Notifier(command, "abc", about)) as notifier:
        notifier.tell(event, "gpu01 is $(lost)")
    assert (tmp_path / "told").read_text() == f"{wanted}\n"


@pytest.mark.parametrize(
    ("target", "why"),
    [
        ("exit 3", "the command ended with 3"),
        ("http://127.0.0.1:9/x", "refused"),
        ("https://[", "ValueError"),
        ("http://127.0.0.1:9/a secret", "InvalidURL"),
    ],
)
def test_what_goes_wrong_is_said_once_and_tells_no_url(
    target: str, why: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with contextlib.closing(Notifier(target, "abc", RECORD)) as notifier:
        notifier.tell("lost", "one")
        notifier.close()
        notifier.tell("done", "two")
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("clusterddp: --notify: ")
    assert why in line
    assert "://" not in line
    assert "secret" not in line


@pytest.mark.parametrize("unfollowed", [["--detach"], ["--launcher", "slurm", "--array", "0-7"]])
def test_the_variable_is_for_runs_that_are_followed_and_refuses_no_other_one(
    unfollowed: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    refused = f"--notify with {'--detach' if '--detach' in unfollowed else '--array'}: a command here"
    for given, said in (([], "nothere.py"), (["--notify", "true"], refused)):
        monkeypatch.setenv("CLUSTERDDP_NOTIFY", "true")
        with contextlib.suppress(SystemExit):
            main(["run", *unfollowed, *given, "nothere.py"])
        assert said in capsys.readouterr().err.splitlines()[-1]


def test_nobody_is_told_without_a_target() -> None:
    with contextlib.closing(Notifier("", "abc", RECORD)) as notifier:
        notifier.tell("done", "succeeded")
        assert notifier._threads == []


@pytest.mark.parametrize("argv", [["--version", "-v"], ["--verbose", "-C", "/", "--version"]])
def test_versions_are_told_for_a_report(capsys: pytest.CaptureFixture[str], argv: list[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(argv)
    assert ended.value.code == 0
    out, err = capsys.readouterr()
    assert out.startswith("clusterddp, version ")
    assert "paramiko " in err
    assert all(line.startswith("clusterddp: ") for line in err.splitlines())
