"""What a worker's environment holds: what the user gave it, from every place, and nothing else of the user's."""

from __future__ import annotations

import hashlib
import json
import re
from typing import TYPE_CHECKING, Any

import pytest

from tests.integration.cli import WAIT, Done, User
from tests.with_torch import need_torch

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.lab import Lab
    from tests.lab.host import LabHost

need_torch()
pytestmark = [pytest.mark.torch, pytest.mark.usefixtures("lab_left_clean")]

SECRET = 'hf_Never\'Written $HOME "anywhere"'
MARK = "hf_Never"  # enough of it to be found by
GO = "/tmp/the secrets were looked for"
TELLS = f"""{WAIT}
import hashlib, json
secret = os.environ.get("TOKEN", "") + os.environ.get("OTHER_TOKEN", "")
hidden = hashlib.sha256(secret.encode()).hexdigest()
print(json.dumps([hidden, {{k: v for k, v in os.environ.items() if "TOKEN" not in k}}]), flush=True)
wait_for(sys.argv[1])
"""
VARIABLES = {
    "clusterddp_setup": [
        'say() { export FROM_SETUP="$1"; }',
        "say 'by a shell function'",
        "export OVER=setup",
        "export OMP_NUM_THREADS=3",
    ],
    "clusterddp_env": {"FROM_INVENTORY": "it's", "OVER": "inventory", "BOTH": "inventory"},
    "clusterddp_secrets": ["OTHER_TOKEN"],
}
GIVEN = (
    *("--env", "EQUALS=a=b c", "--env", "FROM_HERE", "--env", "BOTH=command line", "--env", "IN_FILE_TOO=command line"),
    *("--env-file", "job.env", "--secret", "TOKEN", "tells.py", GO),
)


@pytest.fixture(scope="module")
def user(lab: Lab, tmp_path_factory: pytest.TempPathFactory) -> User:
    user = User(tmp_path_factory.mktemp("user"))
    lab.write_inventory(user.folder / "inventory.yaml", hosts=["gpu02"], more={"all": VARIABLES})
    user.env["CLUSTERDDP_INVENTORY"] = "inventory.yaml"
    user.env.update(TOKEN=SECRET, OTHER_TOKEN=SECRET[::-1], FROM_HERE="two\nlines", STAYS_HERE="1")
    user.write("tells.py", TELLS)
    user.write("job.env", "# a comment\n\nIN_FILE=two words\nexport EXPORTED=$HOME\nIN_FILE_TOO=file\n")
    return user


def files_with(host: LabHost, text: str) -> list[str]:
    """The files of a host's own disk that hold a text."""
    grep = ["grep", "-rlF", "--", text, "/home", "/tmp", "/var/tmp", "/run", "/dev/shm"]
    return host.run(grep, user="root", check=False).stdout.split("\n")[:-1]


@pytest.fixture(scope="module")
def told(user: User, lab: Lab) -> Iterator[tuple[Done, list[str], Any]]:
    """A run's output; the files that held the secret meanwhile; its status."""
    host = lab.host("gpu02")
    with user.start("run", *GIVEN) as live:
        live.wait_for("FROM_INVENTORY")
        files = [
            f"{mode} {name}"
            for name in files_with(host, MARK)
            for mode in host.run(["stat", "-c", "%a", name]).stdout.split()
        ]
        words = [word for seen in host.processes() for word in seen.cmdline]
        assert words
        assert not [word for word in words if MARK in word]
        status = user.status(live.run)
        host.write(GO, "")
        yield live.end(), files, status


def test_every_place_of_the_environment_reaches_the_worker(told: tuple[Done, list[str], Any]) -> None:
    assert told[0].code == 0, told[0].out + told[0].err
    _, env = json.loads(told[0].workers[0].text)
    expected = {
        "EQUALS": "a=b c",
        "FROM_HERE": "two\nlines",
        "IN_FILE": "two words",
        "EXPORTED": "$HOME",
        "IN_FILE_TOO": "command line",
        "FROM_INVENTORY": "it's",
        "FROM_SETUP": "by a shell function",
        "OVER": "inventory",
        "BOTH": "command line",
        "OMP_NUM_THREADS": "3",
    }
    assert {name: env.get(name) for name in expected} == expected
    assert env["CLUSTERDDP_HOST"] == "gpu02"
    assert env["CLUSTERDDP_RUN_ID"] == told[0].run
    assert env["HOME"] == "/home/trainer"
    assert "STAYS_HERE" not in env
    assert not [name for name in env if name.startswith("PET_")]


def test_a_secret_reaches_the_worker_and_lies_nowhere_but_in_one_private_file(
    told: tuple[Done, list[str], Any], user: User, lab: Lab
) -> None:
    done, files, status = told
    hidden, _ = json.loads(done.workers[0].text)
    assert hidden == hashlib.sha256((SECRET + SECRET[::-1]).encode()).hexdigest()
    assert len(files) == 1
    assert files[0].startswith("600 ")
    assert files[0].endswith("/secrets.json")
    assert files_with(lab.host("gpu02"), MARK) == []
    said = [done.out, done.err, json.dumps(status), user.run("logs").out, user.run("status").out]
    said += [path.read_text(errors="replace") for path in user.folder.rglob("*") if path.is_file()]
    assert not [text for text in said if MARK in text]


def test_several_workers_share_the_cores_and_torchrun_has_nothing_to_warn_of(lab: Lab, tmp_path: Path) -> None:
    user = User(tmp_path)
    lab.write_inventory(user.folder / "inventory.yaml", hosts=["gpu02"])
    user.env["CLUSTERDDP_INVENTORY"] = "inventory.yaml"
    user.write("threads.py", "import os\nprint(os.environ['OMP_NUM_THREADS'])\n")
    done = user.run("run", "-v", "--nproc-per-node", "2", "threads.py")
    assert done.code == 0, done.err
    share = re.search(r"gpu02: OMP_NUM_THREADS=(\d+) \(cores that may be used: (\d+); workers there: 2\)", done.err)
    assert share
    assert int(share[1]) == max(1, int(share[2]) // 2)
    assert [one.text for one in done.workers] == [share[1]] * 2
    assert "OMP_NUM_THREADS" not in user.run("logs", done.run).out


def test_a_dry_run_shows_secrets_by_name(user: User) -> None:
    done = user.run("run", "--dry-run", *GIVEN)
    assert done.code == 0, done.err
    assert MARK not in done.out + done.err
    assert {"export TOKEN=<secret>", "export OTHER_TOKEN=<secret>", *VARIABLES["clusterddp_setup"]} <= set(done.lines)


def test_an_unset_secret_is_named_before_anything_starts(user: User) -> None:
    done = user.run("run", "--secret", "UNSET_TOKEN", "tells.py", GO)
    assert done.code == 125
    assert "UNSET_TOKEN" in done.notes[-1]
