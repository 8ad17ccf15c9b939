"""What docs/troubleshooting.md says, on real machines: -v over every way to a host, and bugs there and here."""

from __future__ import annotations

import re
import stat
from typing import TYPE_CHECKING

import pytest

from tests.integration.cli import User

if TYPE_CHECKING:
    from pathlib import Path

    from tests.conftest import MakeLab
    from tests.integration.cli import Done
    from tests.lab import Lab

# A bug in an operation, put into the code that hosts get; zip files bear times, so that both hosts get the same bytes.
BUG_ON_HOSTS = """
import hashlib, io, zipfile
from clusterddp.hosts import zipapp
real, buffer = zipapp.bundle(), io.BytesIO()
with zipfile.ZipFile(io.BytesIO(real.code)) as source, zipfile.ZipFile(buffer, "w") as target:
    for info in source.infolist():
        text = source.read(info)
        if info.filename.endswith("/MODULE.py"):
            text += b"\\ndef FUNCTION(request):\\n    raise KeyError('provoked')\\n"
        if not info.filename.endswith("/MODULE.pyc"):
            target.writestr(info, text)
made = zipapp.Bundle(code=buffer.getvalue(), digest=hashlib.sha256(buffer.getvalue()).hexdigest())
zipapp.bundle = lambda: made
"""
BUG_HERE = """
from clusterddp.api import find_runs
def list_runs(*_args, **_options):
    raise KeyError("provoked")
find_runs.list_runs = list_runs
"""
TIMED = re.compile(r" *\d+ ms  (.*)")
CRASH = re.compile(r"please report it with (\.clusterddp/crashes/\S+\.txt)$")


@pytest.fixture
def user(tmp_path: Path) -> User:
    """No `up`: each command finds out all that it needs."""
    user = User(tmp_path)
    user.env["CLUSTERDDP_INVENTORY"] = "inventory.yaml"
    user.write("train.py", "print('never')\n")
    return user


def with_bug(user: User, text: str) -> dict[str, str]:
    """The environment of a command that has it."""
    user.write("site/sitecustomize.py", text)
    return {"PYTHONPATH": str(user.folder / "site")}


def told(done: Done) -> list[str]:
    """What -v has told, without the times."""
    return [match[1] for match in map(TIMED.fullmatch, done.notes) if match]


def of(host: str, lines: list[str]) -> list[str]:
    return [line.removeprefix(f"{host}: ") for line in lines if line.startswith(f"{host}: ")]


def test_verbose_tells_the_way_to_each_host_and_why(make_lab: MakeLab, user: User) -> None:
    lab = make_lab(2, bastion=True)
    more = {"gpu00": {"clusterddp_transport": "fabric"}, "gpu01": {"clusterddp_transport": "openssh"}}
    lab.write_inventory(user.folder / "inventory.yaml", more=more)
    done = user.run("hosts", "-v")
    assert (done.code, told(done)[0].startswith("project ")) == (0, True)
    done = user.run("stop", "-v", "--all")
    first, second = (host.address for host in lab.machines[:2])
    via = f" via trainer@{lab.machines[-1].address}:22"
    one, other = of("gpu00", told(done)), of("gpu01", told(done))
    assert one[0] == f"fabric to trainer@{first}:22{via}"
    assert one[1] == "logged in as trainer"
    assert other[0] == f"the ssh program (for clusterddp_transport: openssh) to trainer@{second}:22{via}"
    for lines in (one, other):
        assert re.search(r"\nruns ended: \d+ ms, \d+ bytes sent, 2 bytes received\n", "\n".join(lines))


def test_a_bug_on_the_hosts_is_one_line_and_their_traceback_in_one_crash_file(lab: Lab, user: User) -> None:
    lab.write_inventory(user.folder / "inventory.yaml", hosts=["gpu00", "gpu01"])
    bug = with_bug(user, BUG_ON_HOSTS.replace("MODULE", "supervisor/status_operation").replace("FUNCTION", "runs"))
    done = user.run("status", env=bug)
    assert done.code == 1
    said = [line.split("; ")[0] for line in done.notes[1:]]
    assert said == ["gpu00, gpu01: KeyError: 'provoked'"]
    (crash,) = {match[1] for match in map(CRASH.search, done.notes) if match}
    path = user.folder / crash
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    here, _, there = path.read_text().partition("On gpu0")
    assert "command    clusterddp status\n" in here
    assert "hosts/client.py" in here
    assert "supervisor/status_operation.py" in there
    assert there.endswith("in runs\n    raise KeyError('provoked')\nKeyError: 'provoked'\n")
    shown = told(user.run("status", "-v", env=bug))
    assert "    raise KeyError('provoked')" in shown


def test_a_bug_on_a_host_while_a_run_starts_is_not_the_scripts_failure(lab: Lab, user: User) -> None:
    lab.write_inventory(user.folder / "inventory.yaml", hosts=["gpu00"])
    bug = with_bug(user, BUG_ON_HOSTS.replace("MODULE", "workdir/sync_operations").replace("FUNCTION", "workdir_state"))
    done = user.run("run", "--secret", "PIN", "train.py", "--token", "hf_1234", env={**bug, "PIN": "open-sesame"})
    assert (done.code, done.out) == (125, "")
    crash = CRASH.search(done.notes[-1])
    assert crash, done.err
    text = (user.folder / crash[1]).read_text() + done.err
    assert "in workdir_state" in text
    assert "clusterddp run --secret PIN train.py --token '********'\n" in text
    assert "open-sesame" not in text


@pytest.mark.parametrize(("words", "code"), [(["logs", "-f"], 125), (["status"], 1)], ids=str)
def test_a_bug_here_is_one_line_and_a_crash_file(lab: Lab, user: User, words: list[str], code: int) -> None:
    lab.write_inventory(user.folder / "inventory.yaml", hosts=["gpu00"])
    done = user.run(*words, env=with_bug(user, BUG_HERE))
    assert (done.code, len(done.notes)) == (code, 2), done.err
    found = CRASH.search(done.notes[1])
    assert found
    assert done.notes[1].startswith("internal error: KeyError: 'provoked' (sitecustomize.py:4); ")
    assert "in list_runs\n" in (user.folder / found[1]).read_text()


def test_verbose_tells_which_network_was_chosen_and_from_what(lab: Lab, user: User) -> None:
    lab.write_inventory(user.folder / "inventory.yaml", hosts=["gpu00", "gpu01"])
    done = user.run("doctor", "-v", "--only", "ports")
    network = [line for line in told(done) if line.startswith("network ")]
    assert len(network) == 1, done.err
    assert re.fullmatch(
        r"network \S+.* \(\d+ Mbit/s\), the fastest with the fewest failed dials: 0 of \d+; besides it: .+", network[0]
    ), network
