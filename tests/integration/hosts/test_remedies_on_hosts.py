"""What messages tell a user to type about hosts is typed as it was printed, and does what they promise."""

from __future__ import annotations

import shutil
import sys
from typing import TYPE_CHECKING, Any

import pytest

from tests.integration.cli import WAIT, User, nothing_left
from tests.integration.complaint import one_line
from tests.integration.throwaway_sshd import make_key
from tests.remedies import Remedy, remedy, type_line
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


# What the inventory says of gpu01, words of `run`, the remedy; what the inventory says then, and the words.
Mending = tuple[dict[str, Any], str, Remedy, dict[str, Any], str]
MENDINGS: list[Mending] = [
    (
        {"clusterddp_interface": "eth9"},
        "",
        remedy("facts/network.py", "correct clusterddp_interface"),
        {"clusterddp_interface": "eth0"},
        "",
    ),
    ({"ansible_port": 23}, "", remedy("hosts/ssh/proxy.py", "start sshd there, or correct ansible_port"), {}, ""),
    (
        {"ansible_port": 23},
        "",
        remedy("launch/answering.py", "{}go on without: --limit {}"),
        {"ansible_port": 23},
        "{limit}",
    ),
    (
        {"ansible_ssh_private_key_file": "/nope/key"},
        "",
        remedy("hosts/ssh/resolve.py", "correct ansible_ssh_private_key_file (or -i)"),
        {},
        "",
    ),
    (
        {"ansible_python_interpreter": "/nope/python"},
        "",
        remedy("hosts/start_helper.py", "set ansible_python_interpreter to a Python 3.8 or newer"),
        {"ansible_python_interpreter": "/usr/bin/python3"},
        "",
    ),
    (
        {"clusterddp_python": "/nope/python"},
        "",
        remedy(
            "checks/catalog/software.py",
            "set clusterddp_python to the interpreter that has torch, or bring it by clusterddp_setup",
        ),
        {},
        "",
    ),
    (
        {"clusterddp_setup": ["true", "false # here"]},
        "",
        remedy("remote/system/setup_env.py", "correct clusterddp_setup, run in `bash -l`"),
        {"clusterddp_setup": ["true", "true # here"]},
        "",
    ),
    ({}, "--gpus 7", remedy("facts/gpu_assignment.py", "leave --gpus out"), {}, ""),
    (
        {},
        "--sync-limit 1",
        remedy(
            "sync/project_files/project_tree.py", "keep them out with .gitignore, or allow more with --sync-limit SIZE"
        ),
        {},
        "--sync-limit 10MB",
    ),
    (
        {"ansible_ssh_common_args": "-o UserKnownHostsFile={user}/none"},
        "",
        remedy("hosts/ssh/known_hosts.py", "compare the fingerprint, then `clusterddp up … --accept-new-host-keys`"),
        {"ansible_ssh_common_args": "-o UserKnownHostsFile={user}/none"},
        "{keys}",
    ),
]


@pytest.mark.parametrize("mending", MENDINGS, ids=lambda one: f"{one[2].path}: {one[2].text[:50]}")
def test_what_is_told_of_a_host_lets_the_next_run_begin(two: Lab, user: User, mending: Mending) -> None:
    need_torch()
    wrong, words, told, right, then = mending
    write_inventory(two, user, placed(wrong, user))
    first = type_line(user, f"clusterddp run --dry-run -i i.yaml {words} train.py")
    assert first.code == 125, first.err
    said = told.found(first.err)
    write_inventory(two, user, placed(right, user))
    if then == "{limit}":
        then = f"--limit {said[2]}"
    elif then == "{keys}":
        done = type_line(user, "clusterddp up i.yaml --accept-new-host-keys")
        assert done.code == 0, done.err
        then = ""
    done = type_line(user, f"clusterddp run --dry-run -i i.yaml {then} train.py")
    assert done.code == 0, done.err


def placed(variables: dict[str, Any], user: User) -> dict[str, Any]:
    """Variables with the user's own folder in them."""
    return {
        name: value.replace("{user}", str(user.home)) if isinstance(value, str) else value
        for name, value in variables.items()
    }


LIVE = remedy("cli/actions/up_action.py", "run {} of this project is {}; `clusterddp stop {}` ends it")
OTHER_CODE = remedy(
    "remote/workdir/workdir.py",
    "give this run a folder of its own with --workdir NAME, wait for that run, or `clusterddp stop %s`",
)


def test_a_run_that_is_live_in_the_folder_is_ended_by_the_command_that_is_told(two: Lab, user: User) -> None:
    """Its inventory is known by -i alone, so the told command has it too."""
    need_torch()
    write_inventory(two, user)
    user.write("wait.py", WAIT + "print('waits', flush=True)\nwait_for('/no/such/file')\n")
    run = user.run("run", "-i", "i.yaml", "--detach", "wait.py").out.strip()
    try:
        live = user.run("up", "i.yaml")
        assert LIVE.commands(live.err) == [f"clusterddp stop -i i.yaml {run}"], live.err
        user.write("more.py", "new = 1\n")
        refused = user.run("run", "-i", "i.yaml", "train.py")
        (command,) = OTHER_CODE.commands(refused.err)
        assert "-i i.yaml" in command
        assert type_line(user, "clusterddp run -i i.yaml --workdir own train.py").code == 0
        done = type_line(user, command)
        assert done.code == 0, done.err
        done = type_line(user, "clusterddp run -i i.yaml train.py")
        assert done.code == 0, done.err
    finally:
        user.run("stop", "-i", "i.yaml", run)
