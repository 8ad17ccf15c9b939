"""`run --notify URL` on lab hosts: the run's lead tells, or the operator where hosts have no way out; nobody twice."""

from __future__ import annotations

import base64
import contextlib
from typing import TYPE_CHECKING

import pytest

from tests.integration.cli import WAIT, user_of, wait_until_nothing_is_left
from tests.lab import network
from tests.lab.system import wait_until
from tests.unit.hooks_served import served
from tests.with_torch import need_torch

if TYPE_CHECKING:
    from pathlib import Path

    from tests.conftest import MakeLab
    from tests.lab.host import LabHost

need_torch()
pytestmark = pytest.mark.torch

SCRIPT = (
    WAIT
    + """
attempt = os.environ["TORCHELASTIC_RUN_ID"].rpartition(".")[2]
print("attempt", attempt, flush=True)
wait_for("never" if attempt == "1" else "/tmp/go")
"""
)


def knowing(host: LabHost, secret: str) -> str:
    """Files of the user's on a host, and command lines and environments of its processes, that hold a text."""
    files = host.run(["grep", "-rlF", secret, "/home/trainer"], check=False).stdout
    seen = [" ".join(one.cmdline) for one in host.processes() if secret in " ".join(one.cmdline) + str(one.environ)]
    return files + "\n".join(seen)


def test_a_detached_run_tells_a_url_of_a_lost_host_the_next_attempt_and_the_end(
    make_lab: MakeLab, tmp_path: Path
) -> None:
    lab = make_lab(3)
    user = user_of(lab, tmp_path, {"train.py": SCRIPT})
    with contextlib.ExitStack() as watched, served(f"10.77.{lab.number}.{network.OPERATOR}") as server:
        user.env["CLUSTERDDP_NOTIFY"] = server.url
        done = user.run("run", "--relaunch", "1", "--nnodes", "2:3", "--detach", "train.py")
        assert done.code == 0, done.err
        run = done.out.strip()
        user.hear(run, "attempt 1", times=3)
        with user.start("status", "--watch", run, terminal=True) as looking:
            looking.wait_for(f"\x1b[H\x1b[2Jrun {run}: ", times=2)  # in place
            looking.key("\x03")
            assert looking.end().code == 0
        watching = watched.enter_context(user.start("status", "--watch", run))
        watching.wait_for(f"run {run}: running")
        assert not any(knowing(host, "very-secret") for host in lab.hosts)
        lab.host("gpu00").power_off()
        wait_until("the next attempt is told", lambda: len(server.told) >= 2, timeout=60)
        for host in lab.hosts[1:]:
            host.write("/tmp/go", "")
        wait_until("the end is told", lambda: len(server.told) >= 3, timeout=60)
        wait_until_nothing_is_left(lab.hosts[1:], run)  # who tells has gone too
        seen = watching.end()
    assert (seen.code, seen.out.count(f"run {run}: succeeded")) == (0, 1)  # piped: where something has changed
    assert f"run {run}: succeeded" in seen.out[seen.out.rindex("run ") :]
    assert [(told["run"], told["event"], told["text"]) for told in server.told] == [
        (run, "lost", "gpu00 is lost"),
        (run, "relaunched", "attempt 2 on gpu01, gpu02"),
        (run, "done", "succeeded after 1 relaunch"),
    ]
    assert {(told["name"], told["script"]) for told in server.told} == {(None, "train.py")}
    assert [told["verdict"] for told in server.told] == [None, None, "succeeded after 1 relaunch"]
    assert [told["hosts"] for told in server.told] == [["gpu00", "gpu01", "gpu02"], *[["gpu01", "gpu02"]] * 2]
    durations = [told["duration"] for told in server.told]
    assert 0 < durations[0] < durations[-1] < 300
    assert durations == sorted(durations)
    assert "very-secret" not in "".join(path.read_text(errors="replace") for path in user.home.rglob("*.json"))


def test_a_password_in_the_url_is_shown_to_its_server_alone(make_lab: MakeLab, tmp_path: Path) -> None:
    lab = make_lab(2)
    user = user_of(lab, tmp_path, {"train.py": WAIT + 'print("here", flush=True)\nwait_for("/tmp/go")\nsys.exit(3)\n'})
    with served(f"10.77.{lab.number}.{network.OPERATOR}") as server:
        user.env["CLUSTERDDP_NOTIFY"] = server.url.replace("://", "://alice:passWort7@")
        shown = user.run("run", "--dry-run", "train.py")
        user.env["TOKEN"] = "hunter2token"
        done = user.run("run", "-v", "--secret", "TOKEN", "--name", "job-hunter2token", "--detach", "train.py")
        assert done.code == 0, done.err
        run = done.out.strip()
        user.hear(run, "here", times=2)
        assert not any(knowing(host, "passWort7") for host in lab.hosts)
        for host in lab.hosts:
            host.write("/tmp/go", "")
        wait_until("the end is told", lambda: bool(server.told), timeout=60)
        wait_until_nothing_is_left(lab.hosts, run)
    (told,) = server.told
    assert (told["event"], told["name"], told["script"]) == ("failed", "job-********", "train.py")
    assert "exit code 3" in told["verdict"]
    assert server.authorized == ["Basic " + base64.b64encode(b"alice:passWort7").decode()]
    assert not any(knowing(host, "passWort7") for host in lab.hosts)
    listed = user.run("runs", "--json")
    said = "".join(one.out + one.err for one in (shown, done, listed))
    kept = "".join(path.read_text(errors="replace") for path in tmp_path.rglob("*") if path.is_file())
    for part in ("passWort7", "very-secret", server.authorized[0] or ""):
        assert part not in said + kept


def test_where_hosts_have_no_way_out_the_operator_tells(make_lab: MakeLab, tmp_path: Path) -> None:
    lab = make_lab(2)
    user = user_of(lab, tmp_path, {"train.py": "print('hi')"})
    with served() as server:
        user.env["CLUSTERDDP_NOTIFY"] = server.url
        done = user.run("run", "train.py")
    assert done.code == 0, done.err
    (told,) = server.told
    assert 0 < told.pop("duration") < 120
    about = {"run": done.run, "name": None, "script": "train.py", "hosts": ["gpu00", "gpu01"]}
    assert told == {**about, "event": "done", "text": "succeeded", "verdict": "succeeded"}
    said = "--notify: no way out from gpu00, gpu01 (Connection refused): told from here, while this follows the run"
    assert said in done.notes
    assert "very-secret" not in done.err + done.out
