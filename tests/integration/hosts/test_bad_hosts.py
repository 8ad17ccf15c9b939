"""Hosts that cannot be used, through the real command line: one clear line, the contract's code, nothing left there."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest

from tests.integration.cli import CLUSTERDDP, Done, User, nothing_left
from tests.integration.complaint import one_line, shell, under
from tests.integration.throwaway_sshd import make_key
from tests.remedies import remedy
from tests.with_torch import need_torch

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from tests.conftest import MakeLab
    from tests.lab import Lab

torch_needed = pytest.mark.torch


@pytest.fixture(scope="module")
def user(tmp_path_factory: pytest.TempPathFactory) -> User:
    made = User(tmp_path_factory.mktemp("user"))
    made.write("train.py", "print('hi')\n")
    return made


@pytest.fixture
def two(lab: Lab) -> Iterator[Lab]:
    """Two of the shared hosts, as before when the test ends."""
    with nothing_left(lab):
        yield lab


def on(lab: Lab, user: User, more: Mapping[str, Mapping[str, object]], *argv: str) -> Done:
    """A command with an inventory of two hosts that says ``more`` of them."""
    lab.write_inventory(user.folder / "i.yaml", hosts=["gpu00", "gpu01"], more=more)
    return user.run(*argv)


# (what the inventory says of gpu01, what is said, the code of `up`)
UNREACHABLE: list[tuple[dict[str, object], tuple[str, ...], int]] = [
    ({"ansible_ssh_private_key_file": "/nope/key"}, ("key file /nope/key of gpu01", "No such file"), 2),
    ({"ansible_user": "nobody-here"}, ("gpu01: nobody-here@", "refused", "ssh-copy-id -i "), 1),
    ({"ansible_port": 23}, ("gpu01: connection refused by ", ":23", "start sshd there"), 1),
    ({"ansible_python_interpreter": "/nope/python"}, ("gpu01: no /nope/python on the host", "3.8 or newer"), 1),
    ({"clusterddp_state": "/etc/hostname/x"}, ("gpu01: cannot write /etc/hostname/x", "clusterddp_state"), 1),
    ({"clusterddp_state": "/usr/state"}, ("gpu01: cannot write /usr/state: Permission denied", "clusterddp_state"), 1),
    ({"clusterddp_state": "/usr"}, ("gpu01: cannot write /usr/clusterddp-", "to a folder that can be written"), 1),
]


@pytest.mark.parametrize(("gpu01", "holds", "code"), UNREACHABLE, ids=[str(gpu01) for gpu01, _, _ in UNREACHABLE])
def test_a_host_that_cannot_be_opened_is_named_with_the_remedy(
    two: Lab, user: User, gpu01: dict[str, object], holds: tuple[str, ...], code: int
) -> None:
    one_line(on(two, user, {"gpu01": gpu01}, "up", "i.yaml"), code, *holds)
    said = one_line(user.run("run", "-i", "i.yaml", "train.py"), 125, *holds)
    assert said.endswith("go on without: --limit 'all:!gpu01'")


def test_a_key_that_is_refused_or_no_key_is_named(two: Lab, user: User, tmp_path: Path) -> None:
    key = make_key(tmp_path / "stranger")
    refused = on(two, user, {"gpu01": {"ansible_ssh_private_key_file": str(key)}}, "run", "-i", "i.yaml", "train.py")
    one_line(refused, 125, f"refused {key}", f"ssh-copy-id -i {key}", "--limit 'all:!gpu01'")
    wrong = on(two, user, {"gpu01": {"ansible_ssh_private_key_file": f"{key}.pub"}}, "up", "i.yaml")
    one_line(wrong, 2, f"gpu01: key file {key}.pub holds no private key", "not the .pub file")


def test_an_operator_without_network_is_told(two: Lab, user: User) -> None:
    two.write_inventory(user.folder / "i.yaml", hosts=["gpu00"])
    done = under(user, ("unshare", "--net"), "run", "-i", "i.yaml", "train.py")
    one_line(done, 125, "gpu00: ", "Network is unreachable")


@pytest.fixture(scope="module")
def ready(lab: Lab, user: User) -> User:
    """Torch's answer is known on the hosts, so that the commands of this file are quick."""
    need_torch()
    lab.write_inventory(user.folder / "good.yaml", hosts=["gpu00", "gpu01"])
    user.up(user.folder / "good.yaml")
    lab.host("gpu01").run([sys.executable, "-m", "venv", "--without-pip", "bare"])
    return user


# (what the inventory says of gpu01, words of `run`, what is said)
UNFIT: list[tuple[dict[str, object], tuple[str, ...], tuple[str, ...]]] = [
    ({"clusterddp_python": "/nope/python"}, (), ("gpu01: no /nope/python", "clusterddp_python")),
    (
        {"clusterddp_python": "~/bare/bin/python"},
        (),
        ("gpu01: /home/trainer/bare/bin/python has no working torch", "set clusterddp_python"),
    ),
    ({"clusterddp_setup": ["true", "false # here"]}, (), ("gpu01: setup line `false # here` failed", "status 1")),
    ({"clusterddp_workdir": "/usr/w"}, (), ("gpu01: cannot sync to /usr/w: Permission denied",)),
    ({"clusterddp_workdir": "/etc/hostname"}, (), ("gpu01: the workdir /etc/hostname is not a folder",)),
    ({"clusterddp_interface": "eth9"}, (), ("gpu01: clusterddp_interface eth9 has no address", "eth0")),
    ({"clusterddp_address": "10.9.8.7"}, (), ("gpu01: clusterddp_address 10.9.8.7 is on none of its interfaces",)),
    ({}, ("--gpus", "7"), ("gpu00: --gpus names GPU 7, but the host has no GPU", "leave --gpus out")),
    ({}, ("--nnodes", "9"), ("--nnodes 9: the inventory has 2 nodes", "ask for fewer")),
    ({}, ("--nnodes", "3:4"), ("--nnodes 3:4: the inventory has 2 nodes", "ask for fewer")),
]


@torch_needed
@pytest.mark.parametrize(("gpu01", "argv", "holds"), UNFIT, ids=[f"{gpu01} {argv}" for gpu01, argv, _ in UNFIT])
def test_a_host_that_cannot_take_part_is_named_with_the_remedy(
    two: Lab, ready: User, gpu01: dict[str, object], argv: tuple[str, ...], holds: tuple[str, ...]
) -> None:
    one_line(on(two, ready, {"gpu01": gpu01}, "run", "-i", "i.yaml", *argv, "train.py"), 125, *holds)


@torch_needed
def test_a_port_range_without_a_free_port_is_named(two: Lab, ready: User) -> None:
    script = "import socket\ns = socket.create_server(('', 29777))\nprint('ok', flush=True)\nwhile True: s.accept()"
    argv = two.host("gpu00").argv([sys.executable, "-c", script])
    with subprocess.Popen(argv, stdout=subprocess.PIPE) as holder:
        assert holder.stdout
        holder.stdout.readline()
        ports = {"all": {"clusterddp_ports": "29777-29777"}}
        done = on(two, ready, ports, "run", "-i", "i.yaml", "train.py")
        holder.kill()
    one_line(done, 125, "gpu00: no free port in 29777-29777", "clusterddp_ports")


@torch_needed
@pytest.mark.usefixtures("two")
def test_readers_that_leave_and_references_that_mean_none_or_several(ready: User) -> None:
    ready.write("many.py", "import threading\nfor i in range(20000): print(i)\nthreading.Event().wait(600)\n")
    run = f"{CLUSTERDDP} run --limit gpu00 --name one many.py"
    out, said = shell(ready, f"{run} | head -1; echo ${{PIPESTATUS[0]}}")
    assert out == "[0 gpu00:0] 0\n141\n"
    assert "the reader of the output is gone; run " in said[-1]  # and the run goes on:
    second = ready.run("run", "--limit", "gpu00", "--detach", "--name", "two", "many.py")
    assert second.code == 0, second.err
    ids = [said[-1].partition("; run ")[2].split()[0], second.out.strip()]
    one_line(ready.run("stop"), 1, "several runs are live", f"{ids[0]} (one)", f"{ids[1]} (two)", "--all")
    one_line(ready.run("stop", ""), 2, "the name of a run is empty", "name one, or leave it out")
    one_line(ready.run("logs", "--follow", "three"), 125, "no run 'three' on these hosts", "runs --all")
    one_line(ready.run("logs", "one", "--rank", "3,4"), 1, f"run {ids[0]} has no rank 3", "its last rank is 0")
    one_line(ready.run("logs", "one", "--host", "gpu01"), 1, f"run {ids[0]} has no part on gpu01", "gpu00")
    assert shell(ready, f"{CLUSTERDDP} logs -f one | head -1; echo ${{PIPESTATUS[0]}}") == ("[0 gpu00:0] 0\n141\n", [])
    assert ready.run("stop", "--all", "--grace", "0").code == 0


@torch_needed
@pytest.mark.usefixtures("two")
def test_an_option_that_torchrun_does_not_know_is_its_verdict(ready: User) -> None:
    done = ready.run("run", "--torchrun-arg", "--no-such-thing", "train.py")
    assert done.code == 125, done.err
    assert "torchrun failed on gpu0" in done.notes[-1]
    assert "--no-such-thing" in done.notes[-1]


def forget_runs(user: User) -> None:
    """Without what the project knows of earlier runs: it would tell of them though no host answers."""
    shutil.rmtree(user.folder / ".clusterddp" / "verdicts", ignore_errors=True)
    (user.folder / ".clusterddp" / "runs.jsonl").unlink(missing_ok=True)


def test_a_host_without_an_answer_is_named(make_lab: MakeLab, user: User) -> None:
    lab = make_lab(2)
    known = f"-o UserKnownHostsFile={lab.folder}/known_hosts -o ConnectTimeout=1"
    lab.write_inventory(user.folder / "i.yaml", more={"all": {"ansible_ssh_common_args": known}})
    lab.host("gpu01").cut()
    holds = (f"gpu01: no answer from {lab.host('gpu01').address}:22 within 1 s", "a firewall drops the port")
    one_line(user.run("up", "i.yaml"), 1, *holds)
    one_line(user.run("run", "-i", "i.yaml", "train.py"), 125, *holds, "--limit 'all:!gpu01'")
    for host in lab.hosts:
        host.cut()
    forget_runs(user)
    for command in ("runs", "stop"):
        done = user.run(command, "-i", "i.yaml")
        assert done.code == 1
        assert all("no answer from" in note for note in done.notes[1:]), done.err


def test_unknown_and_changed_host_keys_are_refused(make_lab: MakeLab, user: User) -> None:
    lab = make_lab(2, known=False)
    lab.write_inventory(user.folder / "i.yaml", more={"all": {"clusterddp_python": "/nope/python"}})
    done = user.run("up", "i.yaml")
    assert done.code == 1
    assert done.notes[1].split() == ["host", "key"]
    assert [note.split()[:2] for note in done.notes[2:4]] == [["gpu00", "ssh-ed25519"], ["gpu01", "ssh-ed25519"]]
    assert done.notes[4].startswith("unknown host keys: gpu00, gpu01; compare the fingerprints, then add --accept-new")
    assert remedy("cli/actions/up_action.py", "compare the fingerprints, then add --accept-new-host-keys").found(
        done.err
    )
    run = user.run("run", "-i", "i.yaml", "train.py")
    assert (run.code, "clusterddp up … --accept-new-host-keys" in run.err) == (125, True)
    assert (lab.folder / "known_hosts").read_text() == ""
    forget_runs(user)
    assert user.run("runs", "-i", "i.yaml").code == 1
    user.run("up", "i.yaml", "--accept-new-host-keys")
    assert (lab.folder / "known_hosts").read_text().count("ssh-ed25519") == 2
    lab.host("gpu01").new_host_key()
    for argv in (("up", "i.yaml"), ("up", "i.yaml", "--accept-new-host-keys")):
        one_line(user.run(*argv), 1, "gpu01: the host key of", "has changed", "/known_hosts:", "ssh-keygen -f")


def test_the_key_of_a_jump_host_is_shown_as_its_own_and_those_behind_it_afterwards(
    make_lab: MakeLab, user: User
) -> None:
    lab = make_lab(2, known=False, bastion=True)
    lab.write_inventory(user.folder / "i.yaml", more={"all": {"clusterddp_python": "/nope/python"}})
    question = "are these the keys of your hosts? [y/N]"
    with user.start("up", "i.yaml", terminal=True) as live:
        for times in (1, 2):
            live.wait_for(question, times=times)
            live.key("y\n")
        done = live.end()
    bastion, hosts, _ = done.out.split(question)
    assert lab.bastion
    assert re.findall(r"jump host \S+|gpu\d+", bastion) == [f"jump host {lab.bastion.address}"]
    assert re.findall(r"jump host \S+|gpu\d+", hosts) == ["gpu00", "gpu01"]
    assert (lab.folder / "known_hosts").read_text().count("ssh-ed25519") == 3
    assert "is unknown" not in done.out


@torch_needed
def test_a_full_disk_is_named_wherever_it_is(make_lab: MakeLab, ready: User) -> None:
    lab = make_lab(1)
    (host,) = lab.hosts
    host.small_disk("/var/tmp/full", "1m")
    host.fill_disk("/var/tmp/full")
    host.small_disk("/var/tmp/state", "4m")

    def said(*words: str, **variables: Any) -> Done:
        named = {f"clusterddp_{name}": value for name, value in variables.items()}
        lab.write_inventory(ready.folder / "i.yaml", more={"all": named})
        return ready.run(*(words or ("run", "train.py")), env={"CLUSTERDDP_INVENTORY": "i.yaml"})

    with nothing_left(lab):
        one_line(said(workdir="/var/tmp/full/w"), 125, "gpu00: cannot sync to /var/tmp/full/w: No space left")
        one_line(said(state="/var/tmp/full/s"), 125, "gpu00: cannot write /var/tmp/full/s", "make room")
        one_line(said("status", state="/var/tmp/state/s"), 1, "no run on these hosts")  # the helper is there now
        host.fill_disk("/var/tmp/state")
        ready.write("train.py", "print('changed')\n")
        done = said(state="/var/tmp/state/s")
        assert (done.code, "No space left on device" in done.notes[-1]) == (125, True), done.err
        assert "/var/tmp/state/s" in done.notes[-1]
