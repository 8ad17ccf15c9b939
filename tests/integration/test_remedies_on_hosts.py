"""What messages tell a user to type about hosts is typed as it was printed, and does what they promise."""

from __future__ import annotations

import shutil
import sys
from typing import TYPE_CHECKING, Any

import pytest

from tests.integration.cli import User, nothing_left
from tests.integration.complaint import one_line
from tests.integration.throwaway_sshd import make_key
from tests.remedies import remedy, type_line
from tests.with_torch import need_torch

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.lab import Lab

TRAIN = "import os\nprint('trained', os.environ['RANK'], flush=True)\n"


@pytest.fixture(scope="module")
def user(tmp_path_factory: pytest.TempPathFactory) -> User:
    made = User(tmp_path_factory.mktemp("user"))
    made.write("train.py", TRAIN)
    return made


@pytest.fixture
def two(lab: Lab) -> Iterator[Lab]:
    """Two of the shared hosts, as before when the test ends."""
    with nothing_left(lab):
        yield lab


def write_inventory(lab: Lab, user: User, gpu01: dict[str, Any] | None = None, **of_all: Any) -> None:
    """An inventory of two hosts, ``i.yaml``, that says so of gpu01 and of both."""
    lab.write_inventory(user.folder / "i.yaml", hosts=["gpu00", "gpu01"], more={"gpu01": gpu01 or {}, "all": of_all})


LET_IN = remedy("hosts/ssh/target.py", "{}; else `{}` has it take the key")
OTHER_USER = remedy("hosts/ssh/target.py", "if your user there is not {}, set ansible_user")


def test_a_user_who_is_not_there_is_thought_of_beside_a_key_that_is_refused(two: Lab, user: User) -> None:
    write_inventory(two, user, {"ansible_user": "nobody-here"})
    said = one_line(user.run("up", "i.yaml"), 1)
    assert OTHER_USER.printed(said) == ("nobody-here",)
    write_inventory(two, user, {"ansible_user": two.host("gpu01").user().name})
    user.up(user.folder / "i.yaml")


def test_the_command_that_is_told_has_the_host_take_a_refused_key(two: Lab, user: User, tmp_path: Path) -> None:
    """The colleague who is let in already types it, with a key in the agent that the host knows."""
    if not shutil.which("ssh-copy-id"):
        pytest.skip("ssh-copy-id is not installed")
    key = make_key(tmp_path / "stranger")
    write_inventory(two, user, {"ansible_ssh_private_key_file": str(key)})
    said = one_line(user.run("up", "i.yaml"), 1)
    (command,) = LET_IN.commands(said)
    before = two.host("gpu01").read("/home/trainer/.ssh/authorized_keys")
    trusted = f"-o UserKnownHostsFile={two.folder}/known_hosts"  # else ssh would ask, at a terminal
    known = command.replace("ssh-copy-id ", f"ssh-copy-id {trusted} ")
    agent = f"eval $(ssh-agent) >/dev/null; trap 'kill $SSH_AGENT_PID' EXIT; ssh-add -q {two.folder}/id_ed25519"
    (user.home / ".ssh").mkdir(mode=0o700, exist_ok=True)
    try:
        done = type_line(user, f"{agent} && {known}")
        assert done.code == 0, done.err
        user.up(user.folder / "i.yaml")
    finally:
        two.host("gpu01").write("/home/trainer/.ssh/authorized_keys", before, mode=0o600)


def test_no_option_is_told_that_goes_on_without_torch(two: Lab, user: User) -> None:
    need_torch()
    two.host("gpu01").run([sys.executable, "-m", "venv", "--without-pip", "no-torch"])
    write_inventory(two, user, {"clusterddp_python": "~/no-torch/bin/python"})
    said = one_line(user.run("run", "-i", "i.yaml", "train.py"), 125, "no working torch")
    assert "--skip" not in said
    assert remedy(
        "checks/catalog/software.py", "install torch there, or set clusterddp_python to the interpreter that has it"
    ).found(said)
    write_inventory(two, user)
    done = user.run("run", "-i", "i.yaml", "train.py")
    assert (done.code, sorted(one.text for one in done.workers)) == (0, ["trained 0", "trained 1"]), done.err
