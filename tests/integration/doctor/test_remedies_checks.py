"""What the doctor tells a user to do is done as it was printed, and its check passes then; no lab is needed."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pytest

from tests.integration.cli import WAIT, User, used_before
from tests.integration.doctor_cli import named
from tests.lean import lean_python
from tests.remedies import Remedy, remedy, type_line

if TYPE_CHECKING:
    from pathlib import Path

TRAIN = "import os\nprint('trained', os.environ.get('MASTER_ADDR'), flush=True)\n"


@pytest.fixture
def user(tmp_path: Path) -> User:
    """Somebody whose hosts are this machine."""
    made = used_before(User(tmp_path))
    made.write("train.py", TRAIN)
    return made


def inventory(user: User, of_all: dict[str, Any], **hosts: dict[str, Any]) -> None:
    """Write i.yaml: these hosts, all this machine; ``{folder}`` in a value is the project's."""
    every = {"ansible_connection": "local", "clusterddp_python": lean_python(), **of_all}
    text = json.dumps({"all": {"vars": every, "hosts": hosts}})
    user.write("i.yaml", text.replace("{folder}", str(user.folder)))


@dataclass(frozen=True, kw_only=True)
class Mending:
    """A host that a check complains of, and what the remedy makes of it.

    Attributes:
        told: The remedy.
        check: Its check.
        said: What that says of host ``b``, after its mark.
        wrong: What the inventory says of host ``b`` first; host ``a`` has nothing of its own.
        right: What it says then.
        of_all: What it says of both.
        of_all_then: What it says of both then.
        then: What is typed in between.
    """

    told: Remedy
    check: str
    said: str
    wrong: dict[str, Any]
    right: dict[str, Any]
    of_all: dict[str, Any] = field(default_factory=dict)
    of_all_then: dict[str, Any] | None = None
    then: str = ""


# Each of these offers two ways, which are both taken.
OWN_PATH = remedy(
    "checks/catalog/environment.py", "mount or copy it there, or set that host's own path in its clusterddp_env"
)
NAME_CARD = remedy(
    "checks/catalog/network.py",
    "unset it, and a run sets it to the right card; or name one that is there (`ip -br addr` lists them)",
)
OWN_LINK = remedy(
    "checks/catalog/storage.py",
    "mount or copy it there (`clusterddp push`), or set that host's own path in its clusterddp_links",
)
MENDINGS = [
    Mending(
        told=remedy(
            "checks/catalog/environment.py",
            "set them in clusterddp_env of all hosts, not in one host's rc files, ~/.nccl.conf or /etc/nccl.conf",
        ),
        check="settings-equal",
        said="! settings-equal: b: NCCL_ALGO=Ring (unset on a)",
        wrong={"clusterddp_setup": ["export NCCL_ALGO=Ring"]},
        right={"clusterddp_setup": ["export NCCL_ALGO=Ring"]},
        of_all_then={"clusterddp_env": {"NCCL_ALGO": "Ring"}},
    ),
    Mending(
        told=OWN_PATH,
        check="paths",
        said="! paths: b: DATA={folder}/nope is not there, on a it is",
        wrong={"clusterddp_env": {"DATA": "{folder}/nope"}},
        right={"clusterddp_env": {"DATA": "{folder}/own"}},
        of_all={"clusterddp_env": {"DATA": "{folder}"}},
        then="mkdir own",
    ),
    Mending(
        told=OWN_PATH,
        check="paths",
        said="! paths: b: DATA={folder}/nope is not there, on a it is",
        wrong={"clusterddp_env": {"DATA": "{folder}/nope"}},
        right={"clusterddp_env": {"DATA": "{folder}/nope"}},
        of_all={"clusterddp_env": {"DATA": "{folder}"}},
        then="mkdir nope",
    ),
    Mending(
        told=remedy(
            "checks/catalog/software.py",
            "remove them from the login's rc files and clusterddp_setup; `run` itself drops them",
        ),
        check="login-environment",
        said="! login-environment: b: the login or clusterddp_setup sets MASTER_ADDR",
        wrong={"clusterddp_setup": ["export MASTER_ADDR=nowhere"]},
        right={"clusterddp_setup": ["true"]},
    ),
    Mending(
        told=remedy("checks/catalog/software.py", "run the lines of clusterddp_setup in `bash -l` on the host"),
        check="setup",
        said="✗ setup: b: setup line `cd no-such-folder` failed with status 1",
        wrong={"clusterddp_setup": ["cd no-such-folder"]},
        right={"clusterddp_setup": ["cd /"]},
        then="! bash -l <<<'cd no-such-folder' && bash -l <<<'cd /'",
    ),
    Mending(
        told=NAME_CARD,
        check="interface",
        said="✗ interface: b: GLOO_SOCKET_IFNAME=eno1, and it has ",
        wrong={"clusterddp_setup": ["export GLOO_SOCKET_IFNAME=eno1"]},
        right={"clusterddp_setup": ["true"]},
    ),
    Mending(
        told=NAME_CARD,
        check="interface",
        said="✗ interface: b: GLOO_SOCKET_IFNAME=eno1, and it has ",
        wrong={"clusterddp_env": {"GLOO_SOCKET_IFNAME": "eno1"}},
        right={"clusterddp_env": {"GLOO_SOCKET_IFNAME": "lo"}},
        then="ip -br addr | grep '^lo '",
    ),
    Mending(
        told=OWN_LINK,
        check="data-links",
        said="✗ data-links: b: links that lead to nothing: data to {folder}/nope",
        wrong={"clusterddp_links": {"data": "{folder}/nope"}},
        right={"clusterddp_links": {"data": "{folder}/nope"}},
        then="mkdir data && touch data/x && clusterddp push -i i.yaml --limit b data/ {folder}/nope/",
    ),
    Mending(
        told=OWN_LINK,
        check="data-links",
        said="✗ data-links: b: links that lead to nothing: data to {folder}/nope",
        wrong={"clusterddp_links": {"data": "{folder}/nope"}},
        right={"clusterddp_links": {"data": "{folder}"}},
    ),
]


def ident(mending: Mending) -> str:
    return f"{mending.check}: {mending.then or mending.right}"


@pytest.mark.parametrize("mending", MENDINGS, ids=ident)
def test_a_check_passes_once_its_remedy_is_followed(user: User, mending: Mending) -> None:
    inventory(user, mending.of_all, a={}, b=mending.wrong)
    first = type_line(user, f"clusterddp doctor -i i.yaml --only {mending.check}")
    assert mending.told.found(first.out), first.out
    assert mending.said.replace("{folder}", str(user.folder)) in first.out
    assert first.code == int(mending.said.startswith("✗"))
    if mending.then:
        done = type_line(user, mending.then.replace("{folder}", f"'{user.folder}'"))
        assert done.code == 0, done.err
    of_all = mending.of_all if mending.of_all_then is None else mending.of_all_then
    inventory(user, of_all, a={}, b=mending.right)
    assert named(user, "-i", "i.yaml", "--only", mending.check) == (0, [])


PLAYBOOK = "python.yml does it"


@pytest.mark.parametrize(
    ("wrong", "why", "playbook"),
    [
        ({"ansible_python_interpreter": "/nope/python"}, "no /nope/python on the host", True),
        ({"clusterddp_state": "/sys/kernel/state"}, "cannot write /sys/kernel/state: ", False),
    ],
    ids=["python", "state"],
)
def test_a_playbook_is_told_for_what_it_mends_alone(
    user: User,
    wrong: dict[str, Any],
    why: str,
    playbook: bool,  # noqa: FBT001
) -> None:
    """The one that installs Python makes no folder that can be written."""
    inventory(user, {}, a=wrong)
    done = user.run("doctor", "-i", "i.yaml", "--only", "helper")
    assert (done.code, PLAYBOOK in done.out) == (1, playbook), done.out
    assert f"✗ helper: a: {why}" in done.out


def test_run_drops_what_another_launcher_has_set(user: User) -> None:
    inventory(user, {}, a={"clusterddp_setup": ["export MASTER_ADDR=nowhere"]})
    done = user.run("run", "-i", "i.yaml", "train.py")
    assert done.code == 0, done.err
    (said,) = done.workers
    assert "nowhere" not in said.text


PORTS = remedy("checks/catalog/network.py", "see who listens (`ss -ltnp`), or set clusterddp_ports to another range")


def test_ports_that_are_taken_are_left_by_another_range(user: User) -> None:
    with contextlib.ExitStack() as stack:
        taken = stack.enter_context(socket.create_server(("", 0))).getsockname()[1]
        inventory(user, {}, a={"clusterddp_ports": f"{taken}-{taken}"})
        said = user.run("doctor", "-i", "i.yaml", "--only", "ports-free").out
        assert PORTS.commands(said) == ["ss -ltnp"]
        if shutil.which("ss"):
            assert f":{taken} " in type_line(user, PORTS.commands(said)[0]).out
        inventory(user, {}, a={})
        assert named(user, "-i", "i.yaml", "--only", "ports-free") == (0, [])


LIST = remedy("checks/engine.py", "`clusterddp doctor --list` shows them")


def test_the_checks_are_listed_for_whoever_names_one_that_is_not_there(user: User) -> None:
    said = user.run("doctor", "--only", "disc").err
    (command,) = LIST.commands(said)
    listed = type_line(user, command)
    assert listed.code == 0, listed.err
    assert "disk" in listed.out
    inventory(user, {}, a={})
    assert user.run("doctor", "-i", "i.yaml", "--only", "disk").code == 0


DISK = remedy(
    "checks/catalog/storage.py",
    "free some (`df -h`, `df -i`), or set clusterddp_workdir and clusterddp_state to a larger disk",
)
OWN = remedy(
    "checks/catalog/storage.py",
    "mend owner and mode, or set clusterddp_workdir and clusterddp_state to folders of your own",
)


@pytest.mark.parametrize(
    ("told", "options", "said"),
    [
        (DISK, "size=9m", "✗ disk: a: workdir {folder}/disk: "),
        (OWN, "size=2g,ro", "✗ writable: a: cannot write: workdir {folder}/disk (Read-only file system)"),
    ],
    ids=["disk", "writable"],
)
def test_a_folder_on_a_bad_disk_is_left_for_another(user: User, told: Remedy, options: str, said: str) -> None:
    if os.geteuid():
        pytest.skip("root alone mounts a disk")
    (user.folder / "disk").mkdir()
    inventory(user, {}, a={"clusterddp_workdir": "{folder}/disk"})
    line = "clusterddp doctor -i i.yaml --only disk,writable"
    first = type_line(user, f"unshare --mount sh -c 'mount -t tmpfs -o {options} tmpfs disk && exec {line}'")
    assert told.found(first.out), first.out
    assert said.replace("{folder}", str(user.folder)) in first.out
    inventory(user, {}, a={"clusterddp_workdir": "{folder}/own", "clusterddp_state": "{folder}/state"})
    assert named(user, "-i", "i.yaml", "--only", "disk,writable") == (0, [])


NOT_REACHED = remedy(
    "checks/catalog/connectivity.py",
    "try `ssh HOST true`; --limit leaves a host out; where the account is missing, users.yml makes it",
)


def test_a_host_whose_proxy_fails_for_ssh_too_is_left_out_by_limit(user: User) -> None:
    proxy = "-o ProxyCommand='echo nobody is in >&2; exit 1'"
    inventory(user, {}, a={}, b={"ansible_connection": "ssh", "ansible_ssh_common_args": proxy})
    first = user.run("doctor", "-i", "i.yaml", "--only", "connection")
    (command,) = NOT_REACHED.commands(first.out)
    asked = type_line(user, command.replace("HOST", f"{proxy} b"))
    assert asked.code == 255, asked.err
    assert named(user, "-i", "i.yaml", "--only", "connection", "--limit", "a") == (0, [])


LIVE = remedy(
    "checks/catalog/machine.py",
    "nothing, if it is meant; `clusterddp runs --all` shows them, `clusterddp stop RUN` ends one",
)


def test_a_live_run_is_shown_and_ended_by_the_told_commands(user: User) -> None:
    user.write("wait.py", WAIT + "print('waits', flush=True)\nwait_for('/no/such/file')\n")
    inventory(user, {}, a={}, b={})
    run = user.run("run", "-i", "i.yaml", "--detach", "wait.py").out.strip()
    try:
        first = user.run("doctor", "-i", "i.yaml", "--only", "live-runs")
        assert f"! live-runs: a, b: run {run} of " in first.out
        assert first.code == 0
        assert user.run("doctor", "-i", "i.yaml", "--only", "live-runs", "--strict").code == 1
        show, stop = LIVE.commands(first.out)
        assert run in type_line(user, show).out
        done = type_line(user, stop.replace("RUN", run))
        assert done.code == 0, done.err
        assert named(user, "-i", "i.yaml", "--only", "live-runs") == (0, [])
    finally:
        user.run("stop", "-i", "i.yaml", run)


STRAY = remedy("checks/catalog/machine.py", "nothing, if it is meant; what a torchrun has left is ended with `kill`")


def test_a_worker_of_a_job_by_hand_is_ended_by_the_told_command(user: User) -> None:
    inventory(user, {}, a={})
    env = {**user.env, "RANK": "3", "WORLD_SIZE": "4", "LOCAL_RANK": "0"}
    with subprocess.Popen(["sleep", "600"], env=env) as worker:
        try:
            first = user.run("doctor", "-i", "i.yaml", "--only", "stray-ranks")
            assert "! stray-ranks: a: workers of a job by hand are running: rank " in first.out
            assert f"rank 3 of 4 (pid {worker.pid})" in first.out
            (command,) = STRAY.commands(first.out)
            assert type_line(user, f"{command} {worker.pid}").code == 0
            assert worker.wait(60) == -signal.SIGTERM
            said = named(user, "-i", "i.yaml", "--only", "stray-ranks")[1]
            assert not any(f"(pid {worker.pid})" in message for *_, message in said)
        finally:
            worker.kill()
