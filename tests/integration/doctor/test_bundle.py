"""`clusterddp bundle` of a run that hangs with secrets in all places, of one that failed, and with a host off."""

from __future__ import annotations

import base64
import gzip
import tarfile
from typing import TYPE_CHECKING

import pytest

from tests.integration.cli import User, local_processes, used_before, user_of
from tests.lab.system import wait_until
from tests.lean import lean_python, training_python
from tests.with_torch import need_torch

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.conftest import MakeLab

need_torch()
pytestmark = pytest.mark.torch

DECLARED, NAMED, INVENTORY, SETUP, ARGUMENT = SECRETS = (
    "declared-secret-1", "named-secret-2", "inventory-secret-3", "setup-secret-4", "argument-secret-5",
)  # fmt: skip
# PYTHON becomes the path of one.
INVENTORY_FILE = f"""
all:
  hosts:
    one: {{ansible_connection: local, ansible_host: 127.0.2.1}}
    two: {{ansible_connection: local, ansible_host: 127.0.2.2}}
  vars:
    ansible_become_password: {INVENTORY}
    clusterddp_python: PYTHON
    clusterddp_env: {{STORE_PASSWORD: {INVENTORY}}}
    clusterddp_setup: ["export SETUP_KEY={SETUP}"]
"""
HANGS = """
import os, sys, threading
import torch
import torch.distributed as dist

dist.init_process_group("gloo")
names = "FOO", "API_KEY", "STORE_PASSWORD", "SETUP_KEY"
for stream in sys.stdout, sys.stderr:
    for number in range(20_000):
        print("step", number, file=stream)
    print(*(os.environ[name] for name in names), sys.argv, file=stream)
    print("together", flush=True, file=stream)
if dist.get_rank() == 1:
    threading.Event().wait(600)
dist.all_reduce(torch.ones(4))
"""
FAILS = "import os\nraise ValueError('No space left on device for ' + os.environ['API_KEY'])\n"
FILES = {"hangs.py": HANGS, "fails.py": FAILS}
STARTED = ("--secret", "FOO", "--env", f"API_KEY={NAMED}")


@pytest.fixture
def user(tmp_path: Path) -> Iterator[User]:
    user = used_before(User(tmp_path))
    for name, text in FILES.items():
        user.write(name, text)
    yield user
    user.run("stop", "--all", "--grace", "0")
    wait_until("nothing is left", lambda: not local_processes(str(user.home)))


def up(user: User, python: str) -> None:
    """Have two hosts here, whose workers run on that interpreter."""
    user.up(user.write("inventory.yaml", INVENTORY_FILE.replace("PYTHON", python)))


def texts(path: Path) -> dict[str, str]:
    with tarfile.open(path) as packed:
        return {one.name.partition("/")[2]: packed.extractfile(one).read().decode() for one in packed}  # type: ignore[union-attr]


def assert_no_secret(path: Path) -> None:
    whole = gzip.decompress(path.read_bytes())
    for value in SECRETS:
        assert value.encode() not in whole
        assert base64.b64encode(value.encode())[:-4] not in whole


def test_a_bundle_of_a_hang_has_all_of_it_but_no_secret(user: User) -> None:
    up(user, training_python())
    started = "--detach", "--name", "night", *STARTED, "hangs.py", "--api-key", ARGUMENT
    run = user.run("run", *started, env={"FOO": DECLARED}).out.strip()
    user.hear(run, "together", times=4)
    path = user.folder / "b.tar.gz"
    done = user.run("bundle", "night", "-o", "b.tar.gz")
    assert (done.code, done.out) == (0, "b.tar.gz\n")
    assert path.stat().st_mode & 0o777 == 0o600
    assert_no_secret(path)
    found = texts(path)
    assert "why.txt" in found["README.txt"]
    assert found["why.txt"].startswith("rank 1 (two:0) did not join all_reduce #1 of group default")
    assert "hangs.py" in found["stacks.txt"]
    for host, rank in (("one", 0), ("two", 1)):
        ours = {name.removeprefix(f"hosts/{host}/") for name in found if name.startswith(f"hosts/{host}/")}
        out, err = (f"outputs/start-0/rank{rank}-0.{stream}" for stream in ("out", "err"))
        assert {"events.jsonl", "plan.json", "traces.json", "facts.json", out, err} <= ours
        assert found[f"hosts/{host}/{out}"].endswith("together\n")
    again = user.run("bundle", "night", "-o", "b.tar.gz")
    assert (again.code, again.notes[-1]) == (2, "b.tar.gz is there already; name another: -o FILE")

    user.run("stop", "night", "--grace", "0")
    assert user.run("why", "b.tar.gz").notes[0] == found["why.txt"].splitlines()[0]
    assert user.run("why", "./b.tar.gz", "--json").json["where"] == "hangs.py:14 in <module>"
    later = user.run("bundle", "night")
    assert_no_secret(user.folder / later.out.strip())
    assert "the last" in texts(user.folder / later.out.strip())["README.txt"]


def test_a_failed_run_leaves_a_bundle_if_it_was_asked_for(user: User) -> None:
    up(user, lean_python())
    done = user.run("run", "--bundle", *STARTED, "fails.py", env={"FOO": DECLARED})
    assert done.code == 1
    (path,) = (user.folder / ".clusterddp" / "bundles").iterdir()
    assert any(line.startswith(f"bundle of run {done.run}: .clusterddp/bundles/{path.name} (") for line in done.notes)
    assert "failed first" in done.notes[-1]
    assert_no_secret(path)
    assert "ValueError: No space left on device for ********" in texts(path)["verdict.txt"]
    explained = user.run("doctor", "--explain", str(path)).out
    assert "/outputs/start-0/rank" in explained
    assert "disk-full" in explained


def test_a_host_that_is_off_is_said_to_be_missing(make_lab: MakeLab, tmp_path: Path) -> None:
    lab = make_lab(3, connect_timeout=2)
    user = user_of(lab, tmp_path, FILES)
    done = user.run("run", *STARTED, "fails.py", env={"FOO": DECLARED})
    lab.host("gpu01").power_off()
    told = user.run("bundle", done.run, "-o", "b.tar.gz")
    assert told.code == 0
    assert "nothing of gpu01" in told.notes[-1]
    found = texts(user.folder / "b.tar.gz")
    assert "gpu01: everything: it does not answer" in found["README.txt"]
    assert {name.split("/")[1] for name in found if name.startswith("hosts/")} == {"gpu00", "gpu02"}
    assert_no_secret(user.folder / "b.tar.gz")
