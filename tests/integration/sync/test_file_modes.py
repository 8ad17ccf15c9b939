"""What a run leaves, here and on hosts, is its user's alone: also where every umask lets everybody in."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from tests.integration.cli import CLUSTERDDP, User, run_id, user_of
from tests.with_torch import need_torch

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.lab import Lab
    from tests.lab.host import LabHost

need_torch()
pytestmark = pytest.mark.torch

# Each path below argv[1:] with its type and mode.
WALK = """
import os, stat, sys
for top in sys.argv[1:]:
    for folder, folders, files in os.walk(top):
        for name in (".", *folders, *files):
            path = os.path.normpath(os.path.join(folder, name))
            mode = os.lstat(path).st_mode
            print(stat.filemode(mode)[0], "%o" % stat.S_IMODE(mode), path)
"""
PRIVATE = {"d": "700", "-": "600", "s": "600", "l": "777"}
PROGRAMS = ("/worker", "/script")  # what is executed
READ = {"d": "755", "-": "644"}  # in a workdir: those who can read the code may see which runs are live


@pytest.fixture(scope="module")
def careless() -> Iterator[Lab]:
    """Two hosts where a login's umask is 000."""
    from tests.own_lab import own_lab  # noqa: PLC0415 - where no lab can be, the test is skipped

    with own_lab(2) as lab:
        for host in lab.hosts:
            host.run(["sh", "-c", "printf 'umask 000\\n' | cat - ~/.bashrc >~/new; mv ~/new ~/.bashrc"])
        yield lab


def careless_run(user: User, *words: str) -> subprocess.CompletedProcess[str]:
    argv = ["sh", "-c", 'umask 000; exec "$@"', "sh", CLUSTERDDP, *words]
    done = subprocess.run(argv, cwd=user.folder, env=user.env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done


def walked(text: str) -> list[tuple[str, str, str]]:
    return [(kind, mode, path) for kind, mode, path in (line.split(" ", 2) for line in text.splitlines())]


def wrong(text: str) -> list[tuple[str, str, str]]:
    """What others can get at."""
    return [
        (kind, mode, path)
        for kind, mode, path in walked(text)
        if "/torch/" not in path  # torchrun's own, in a folder of ours
        and mode != ("700" if kind == "-" and path.endswith(PROGRAMS) else PRIVATE[kind])
    ]


def on(host: LabHost, *folders: str) -> str:
    return host.run([sys.executable, "-c", WALK, *folders]).stdout


def test_what_a_run_leaves_is_its_users_alone_whatever_the_umask(careless: Lab, tmp_path: Path) -> None:
    user = user_of(careless, tmp_path, {"train.py": "import os\nprint(os.umask(0o22))\nopen('out.txt', 'w').close()\n"})
    careless_run(user, "up", "inventory.yaml")
    said = careless_run(user, "run", "train.py")
    assert run_id(said.stderr)
    assert {line.rpartition(" ")[2] for line in said.stdout.splitlines()} == {
        "0"
    }  # the worker's own umask is the user's
    careless_run(user, "exec", "--", "true")
    for host in careless.hosts:
        found = on(host, ".clusterddp")
        assert len(walked(found)) > 40
        assert wrong(found) == []
        (workdir,) = host.run(["sh", "-c", "ls -d ~/clusterddp/*"]).stdout.split()
        live = walked(on(host, f"{workdir}/.clusterddp-live"))
        assert len(live) >= 6
        assert [one for one in live if one[1] not in (PRIVATE[one[0]], READ[one[0]])] == []
        said_of = {path.rpartition("/")[2].partition(".")[0] for kind, mode, path in live if mode == "644"}
        assert said_of <= {"lock", "run", "id", ""}
    here = subprocess.run(
        [sys.executable, "-c", WALK, str(user.folder / ".clusterddp")], capture_output=True, text=True, check=True
    )
    assert len(walked(here.stdout)) > 5
    assert wrong(here.stdout) == []
