"""A job that shouts its secrets: only its own output files hold them, whatever is asked of the run then."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest

from tests.integration.cli import WAIT, user_of, wait_until_nothing_is_left
from tests.lab import network
from tests.own_lab import own_lab
from tests.unit.hooks_served import served

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.integration.cli import User
    from tests.lab import Lab
    from tests.lab.host import LabHost

VALUE = "hunter2/Geheim &7-ü"
LONG = "-----BEGIN KEY-----\nMIIEvQIBADANBgkqhkiG\n-----END KEY-----\n"
SHOUTS = """
import json, os, subprocess, sys, urllib.parse
value, long = os.environ["TOKEN"], os.environ["LONG_KEY"]
how = sys.argv[1]
print("job says", value, flush=True)
if os.environ["RANK"] != "0":
    sys.exit(0)
if how == "exception":
    raise RuntimeError("401 for " + value + " and " + long.splitlines()[1])
if how == "repr":
    raise KeyError({"token": value, "key": long})
if how == "url":
    raise ConnectionError("https://u:" + urllib.parse.quote(value, safe="") + "@example.org: " + json.dumps(value))
if how == "exit":
    sys.exit(value)
if how == "stderr":
    sys.stderr.write("x" * 40000 + value + "\\n" + value + "\\n")
    os._exit(7)
if how == "abort":
    sys.stderr.write("terminate called after throwing\\n  what():  " + value + "\\n")
    sys.stderr.flush()
    os.abort()
if how == "title":
    subprocess.Popen(["sh", "-c", 'exec -a "$1" sleep 1000', "sh", value], start_new_session=True)
    raise RuntimeError(value * 8000)
if how == "record":
    from torch.distributed.elastic.multiprocessing.errors import record
    @record
    def main():
        raise ValueError(value)
    main()
"""
WAYS = ("exception", "repr", "url", "exit", "stderr", "abort", "title", "record")


def holding(text: str) -> list[str]:
    """Which of the secrets stand in a text."""
    parts = (VALUE, LONG.split("\n")[1], "hunter2", "Geheim")
    return [part for part in parts if part in text]


def files_holding(host: LabHost, *parts: str) -> list[str]:
    """The files on a host that contain one of these texts, without the output files of workers."""
    patterns = [word for part in parts for word in ("-e", part)]
    places = ["/home/trainer", "/var/tmp", "/tmp", "-xdev"]  # this checkout may be mounted below
    found = host.run(["find", *places, "-type", "f", "-exec", "grep", "-lF", *patterns, "{}", "+"], check=False)
    return [path for path in found.stdout.splitlines() if not path.endswith((".out", ".err")) or "/logs/agent." in path]


def asked_of(user: User, *runs: str, live: bool = False) -> str:
    """All that our commands print of these runs; `wait` is left out where they are ``live``."""
    asked: list[tuple[str, ...]] = [
        words for run in runs for words in (("status", run), ("status", "--json", run), ("doctor", "--explain", run))
    ]
    asked += [("runs", "--json"), *([] if live else [("wait", *runs)])]
    done = [user.run(*words) for words in asked]
    return "".join(one.out + one.err for one in done)


@pytest.fixture(scope="module")
def two() -> Iterator[Lab]:
    """Two hosts for all tests of this file; only the output files of workers may contain a secret there."""
    with own_lab(2) as lab:
        yield lab


def test_a_secret_that_a_job_shouts_in_any_way_is_in_its_own_output_files_alone(two: Lab, tmp_path: Path) -> None:
    lab = two
    user = user_of(lab, tmp_path, {"train.py": SHOUTS})
    user.env.update(TOKEN=VALUE, LONG_KEY=LONG)
    runs = {}
    with served(f"10.77.{lab.number}.{network.OPERATOR}") as server:
        user.env["CLUSTERDDP_NOTIFY"] = server.url
        for way in WAYS:
            done = user.run("run", "--secret", "TOKEN", "--secret", "LONG_KEY", "--show", "1", "train.py", way)
            assert done.code not in (0, 125), (way, done.err)
            ours = "".join(line for line in done.out.splitlines() if "job says" not in line) + done.err
            assert "rank 0 (gpu00:0) failed first" in ours, way
            assert holding(ours) == [], way
            runs[way] = done.run
        for run in runs.values():
            wait_until_nothing_is_left(lab.hosts, run)  # its webhook has told all
    assert holding(asked_of(user, *runs.values())) == []
    assert {told["run"] for told in server.told} == set(runs.values()), "each was told to the webhook"
    assert holding(str(server.told)) == []
    for host in lab.hosts:
        assert files_holding(host, "hunter2", "MIIEvQIBADAN") == []
        own = host.run(["grep", "-rlF", VALUE, "/home/trainer", "--include=0.0.out"]).stdout
        for way, run in runs.items():
            assert re.search(rf"/runs/{run}/.*/logs/0\.0\.out", own), f"{way}: the job's own lines stay as they are"
    for path in user.home.rglob("*"):
        assert not path.is_file() or holding(path.read_text(errors="replace")) == [], path


AGAIN = (
    WAIT
    + """
attempt = os.environ["TORCHELASTIC_RUN_ID"].rpartition(".")[2]
if attempt == "1" and os.environ["RANK"] == "0":
    raise ConnectionResetError("Connection reset by peer, asked as " + os.environ["TOKEN"])
print("attempt", attempt, flush=True)
wait_for("never" if attempt == "1" else "/tmp/go")
sys.exit("at last " + os.environ["TOKEN"])
"""
)


def test_a_secret_that_is_the_cause_of_a_relaunch_is_struck_in_both_attempts(two: Lab, tmp_path: Path) -> None:
    lab = two
    user = user_of(lab, tmp_path, {"train.py": AGAIN})
    user.env.update(TOKEN=VALUE)
    run = user.run("run", "--detach", "--relaunch", "1", "--secret", "TOKEN", "train.py").out.strip()
    user.hear(run, "attempt 2", times=2)
    live = "".join(host.run(["cat", *spool_files(host, run)]).stdout for host in lab.hosts)
    assert '"asked as ********' in live.replace("Connection reset by peer, ", '"')  # it did travel
    assert holding(live) == []
    assert holding(asked_of(user, run, live=True)) == []
    for host in lab.hosts:
        host.write("/tmp/go", "")
    wait_until_nothing_is_left(lab.hosts, run)
    assert holding(asked_of(user, run)) == []
    assert [path for host in lab.hosts for path in files_holding(host, "hunter2")] == []


JOINS = """
import os, threading
print("world", os.environ["WORLD_SIZE"], flush=True)
if os.environ["WORLD_SIZE"] != "2":
    threading.Event().wait()
if os.environ["CLUSTERDDP_HOST"] == "gpu01":
    raise ValueError("refused as " + os.environ["TOKEN"])
threading.Event().wait()
"""


def test_a_host_that_joins_strikes_the_secret_it_was_given(two: Lab, tmp_path: Path) -> None:
    lab = two
    user = user_of(lab, tmp_path, {"train.py": JOINS})
    user.env.update(TOKEN=VALUE)
    more = ("--nnodes", "1:2", "--max-restarts", "1", "--secret", "TOKEN", "train.py")
    run = user.run("run", "--detach", "--limit", "gpu00", *more).out.strip()
    user.hear(run, "world 1")
    joined = user.run("run", "--join", run)
    assert joined.code == 0, joined.err
    user.hear(run, "ValueError: refused as")
    user.run("stop", run)  # the first host would go on alone
    kept = lab.hosts[1].run(["cat", *spool_files(lab.hosts[1], run)]).stdout
    assert "refused as ********" in kept
    wait_until_nothing_is_left(lab.hosts, run)
    assert holding(asked_of(user, run)) == []
    assert [path for host in lab.hosts for path in files_holding(host, "hunter2")] == []


def spool_files(host: LabHost, run: str) -> list[str]:
    """Our own files of a run on a host: all but secrets and what workers print."""
    found = host.run(["find", "/home/trainer", "-path", f"*/runs/{run}/*", "-name", "*.json*"]).stdout.split()
    return [path for path in found if not path.endswith("/secrets.json")]
