"""Another local user of a host tries to have code of his run as the one who trains: real accounts, real connections."""

from __future__ import annotations

import contextlib
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from tests.integration.cli import User, user_of
from tests.integration.complaint import one_line

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.lab import Lab
    from tests.lab.host import LabHost

TRIES = 25  # connections under attack; where it works it takes one to six
EVIL = "/home/bob/evil"  # a helper's folder as it has to be, with more in the zipapp
OWNED = "/home/bob/owned"  # who ran that
STATE = "/home/trainer/.clusterddp"
TEAM = "/srv/team"

# What bob's zipapp has more: a module of the standard library that every helper imports.
MORE = f"import os\nwith open({OWNED!r}, 'a') as out: out.write('%d ' % os.getuid())\nraise ImportError\n"
ADD = """
import sys, zipfile
path, text = sys.argv[1:]
with zipfile.ZipFile(path, "a") as archive:
    for name in ("collections", "select", "functools"):
        archive.writestr(name + ".py", text)
"""
# Two names change places, as fast as the kernel can.
FLIP = """
import ctypes, os, sys
first, second = (name.encode() for name in sys.argv[1:])
flip = lambda: ctypes.CDLL(None, use_errno=True).renameat2(-100, first, -100, second, 2)  # RENAME_EXCHANGE
if flip():
    sys.exit(os.strerror(ctypes.get_errno()))
print("flips", flush=True)
while not flip():
    pass
"""


@pytest.fixture(scope="module")
def shared() -> Iterator[Lab]:
    """A host that two people use."""
    from tests.own_lab import own_lab  # noqa: PLC0415 - where no lab can be, the test is skipped

    with own_lab(1, users=("trainer", "bob")) as lab:
        yield lab


@pytest.fixture
def host(shared: Lab) -> Iterator[LabHost]:
    """The host, on which bob has prepared the code that is to run as trainer."""
    host = shared.host("gpu00")
    root(host, f"getent group team || echo team:x:7000:trainer,bob >>/etc/group; rm -f {OWNED}")
    host.run(["sh", "-c", f"mkdir -p {EVIL}/helper; touch {OWNED}; chmod 755 ~; chmod 666 {OWNED}"], user="bob")
    yield host
    root(host, f"rm -rf /var/tmp/* {TEAM} {EVIL}")


@pytest.fixture
def user(shared: Lab, tmp_path: Path) -> User:
    return user_of(shared, tmp_path, {})


def root(host: LabHost, script: str) -> str:
    return host.run(["sh", "-c", script], user="root").stdout


def uid(host: LabHost) -> int:
    return host.user("trainer").uid


def plant(host: LabHost, state: str) -> None:
    """Give bob trainer's zipapp with more in it, by the same name; everybody can have this version of ours."""
    root(host, f"cp {state}/helper/*.pyz {EVIL}/helper/")
    for path in root(host, f"ls {EVIL}/helper/*.pyz").split():
        host.run([sys.executable, "-c", ADD, path, MORE], user="root")
    root(host, f"chown -R bob: {EVIL}; chmod -R a+rX {EVIL}")


@contextlib.contextmanager
def flipping(host: LabHost, first: str, second: str) -> Iterator[None]:
    """While bob has two names change places; he must be able to."""
    argv = host.argv([sys.executable, "-c", FLIP, first, second], "bob")
    with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout
        assert process.stdout.readline() == "flips\n"
        try:
            yield
            assert process.poll() is None
        finally:
            process.kill()


def command(user: User) -> None:
    """A command on the host, which works."""
    done = user.run("exec", "--", "true")
    assert done.code == 0, done.err


def test_a_link_that_flips_in_a_folder_planted_in_var_tmp_runs_nothing(host: LabHost, user: User) -> None:
    command(user)
    plant(host, STATE)
    place = f"/var/tmp/clusterddp-{uid(host)}"
    links = f"mkdir -m 755 {place}; ln -s {STATE}/helper {place}/helper; ln -s {EVIL}/helper {place}/other"
    host.run(["sh", "-c", links], user="bob")
    with flipping(host, f"{place}/helper", f"{place}/other"):
        for _ in range(TRIES):
            command(user)
            assert host.read(OWNED) == ""


def using(shared: Lab, tmp_path: Path, state: str) -> User:
    """Somebody whose inventory names a state folder."""
    return user_of(shared, tmp_path, {}, more={"gpu00": {"clusterddp_state": state}})


@pytest.mark.parametrize("sticky", [False, True])
def test_a_folder_of_ours_that_flips_in_a_teams_folder_runs_nothing(
    shared: Lab, host: LabHost, tmp_path: Path, *, sticky: bool
) -> None:
    state, theirs = f"{TEAM}/clusterddp-{uid(host)}", f"{TEAM}/theirs"
    user = using(shared, tmp_path, TEAM)
    root(host, f"mkdir -p {TEAM}; chgrp team {TEAM}; chmod 3775 {TEAM}")
    command(user)
    plant(host, state)
    host.run(["cp", "-r", EVIL, theirs], user="bob")
    if sticky:
        with pytest.raises(AssertionError), flipping(host, state, theirs):  # the kernel does not let him
            pass
        command(user)
    else:
        root(host, f"chmod -t {TEAM}")
        with flipping(host, state, theirs):
            for _ in range(TRIES):
                refused = f"{TEAM} can be written by other users, who could put their own in place of {state}"
                said = one_line(user.run("exec", "--", "true"), 125, refused)
                assert said.endswith(f"`chmod +t {TEAM}`, or set clusterddp_state to a folder of your own")
    assert host.read(OWNED) == ""


# What bob puts at /var/tmp/clusterddp-UID, and what trainer is told who has his state there.
PLANTED = {
    "a folder": ("mkdir -m 755 $0; cp -r ~/evil/helper $0", "is another user's folder; set clusterddp_state to a"),
    "a link": ("ln -s ~/evil $0", "is another user's link; set clusterddp_state to a folder of your own"),
    "a link to trainer's": (
        f"ln -s {STATE} $0",
        "is another user's link; set clusterddp_state to a folder of your own",
    ),
    "pipes": (
        "mkdir $0 $0/helper; for name in ~/evil/helper/*; do mkfifo $0/helper/${name##*/}; done",
        "is another user's folder",
    ),
    "a file": ("touch $0", "it is a file; set clusterddp_state to a folder that can be written"),
}


@pytest.mark.parametrize("planted", PLANTED)
def test_what_another_user_has_planted_is_neither_used_nor_waited_for(
    shared: Lab, host: LabHost, tmp_path: Path, planted: str
) -> None:
    user, place = user_of(shared, tmp_path, {}), f"/var/tmp/clusterddp-{uid(host)}"
    command(user)
    plant(host, STATE)
    make, said = PLANTED[planted]
    host.run(["sh", "-c", make, place], user="bob")
    command(user)  # its state is in the home
    shared.write_inventory(tmp_path / "here.yaml", more={"gpu00": {"clusterddp_state": place}})
    one_line(user.run("exec", "-i", str(tmp_path / "here.yaml"), "--", "true"), 125, place, said)
    assert host.read(OWNED) == ""


@pytest.mark.parametrize("option", ["-s", "-f"])
def test_a_link_to_the_code_in_a_folder_of_another_user_is_not_followed(host: LabHost, user: User, option: str) -> None:
    command(user)
    place = f"/var/tmp/clusterddp-{uid(host)}"
    host.run(["sh", "-c", f"mkdir -p {place}/helper"], user="bob")
    root(host, f"ln {option} {STATE}/helper/*.pyz {place}/helper/")  # -f: as without fs.protected_hardlinks
    command(user)
    assert host.read(OWNED) == ""
