"""The state folder on a job's nodes: bash judges it, by the script, before anything in it is used."""

from __future__ import annotations

import os
import stat
import struct
import subprocess
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

import pytest

from clusterddp.launch.slurm.client.batch_script import script
from clusterddp.remote.shared.slurm.job_record import NOT_OURS
from tests.unit.launch.slurm.client.test_batch_script import ASKED, SENT, job

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="another user's folders are made")

ME, OTHER = 40001, 40002


@pytest.fixture
def place() -> Iterator[Path]:
    """A folder as /var/tmp is, in which all may write: pytest's own folders are root's alone."""
    with TemporaryDirectory(dir="/var/tmp") as folder:
        Path(folder).chmod(0o1777)
        yield Path(folder)


def judged(state: Path, *, unshared: bool) -> subprocess.CompletedProcess[str]:
    """What the script does as ME up to its first use of the state folder."""
    whole = script(job(sent_code=SENT if unshared else None, state=str(state)), ASKED, code="/c.pyz", python="python3")
    head, _, _ = whole.partition("# What the nodes start.")
    return subprocess.run(
        ["bash", "-c", f"{head}\nmkdir -p $folder && echo used"],
        user=ME, group=ME, extra_groups=[], capture_output=True, text=True, check=False,
    )  # fmt: skip


def made(path: Path, owner: int, mode: int = 0o755) -> Path:
    path.mkdir()
    path.chmod(mode)
    os.chown(path, owner, owner)
    return path


def linked(path: Path, leads: Path, owner: int) -> Path:
    path.symlink_to(leads)
    os.lchown(path, owner, owner)
    return path


REFUSED: dict[str, Callable[[Path], Path]] = {
    "another's": lambda at: made(at / "state", OTHER, 0o777),
    "another's link to a folder of ours": lambda at: linked(at / "state", made(at / "mine", ME), OTHER),
    "another's link that leads nowhere": lambda at: linked(at / "state", at / "nothing", OTHER),
    "in another's": lambda at: made(at / "above", OTHER, 0o1777) / "state",
    "where all may rename it": lambda at: made(at / "above", 0, 0o777) / "state",
    "where a group may rename it": lambda at: made(at / "above", ME, 0o775) / "state",
    "through our link into another's": lambda at: linked(at / "state", made(at / "theirs", OTHER) / "it", ME),
    "through our link to another's link": lambda at: linked(
        at / "state", linked(at / "theirs", made(at / "mine", ME), OTHER), ME
    ),
    "by .. from another's": lambda at: made(at / "theirs", OTHER, 0o1777) / ".." / "state",
}
TAKEN: dict[str, Callable[[Path], Path]] = {
    "nothing yet": lambda at: at / "state",
    "nothing, nor above it": lambda at: at / "above" / "state",
    "ours": lambda at: made(at / "state", ME, 0o700),
    "ours, and others may read it": lambda at: made(at / "state", ME),
    "through our link": lambda at: linked(at / "state", made(at / "mine", ME), ME),
    "through a relative link of root's": lambda at: linked(at / "home", Path(made(at / "data", ME).name), 0) / "state",
}


@pytest.mark.parametrize("unshared", [False, True])
@pytest.mark.parametrize("lay_out", REFUSED)
def test_one_that_another_user_owns_or_could_replace_is_refused_before_it_is_used(
    place: Path, lay_out: str, *, unshared: bool
) -> None:
    state = REFUSED[lay_out](place)
    before = sorted((path, path.lstat().st_mode) for path in place.rglob("*"))
    done = judged(state, unshared=unshared)
    assert (done.returncode, done.stdout) == (NOT_OURS, "")
    assert f"clusterddp: {state} is not this user's alone on " in done.stderr.splitlines()[-1]
    assert sorted((path, path.lstat().st_mode) for path in place.rglob("*")) == before


@pytest.mark.parametrize("unshared", [False, True])
@pytest.mark.parametrize("lay_out", TAKEN)
def test_one_of_the_user_s_own_is_taken_and_closed_to_others(place: Path, lay_out: str, *, unshared: bool) -> None:
    state = TAKEN[lay_out](place)
    if not unshared:  # whoever submits has made it
        (state / "slurm" / "k3xa8w2mnp").mkdir(parents=True, exist_ok=True)
        for path in (state, *state.rglob("*"), *(one for one in state.parents if place in one.parents)):
            os.chown(path, ME, ME)
    done = judged(state, unshared=unshared)
    assert (done.returncode, done.stdout, done.stderr) == (0, "used\n", "")
    assert stat.S_IMODE(state.stat().st_mode) == 0o700
    if unshared:  # the script itself has made what lies in it
        assert {stat.S_IMODE(path.stat().st_mode) for path in state.rglob("*")} == {0o700}
    assert state.stat().st_uid == ME


def test_one_that_an_access_list_lets_others_replace_is_refused(place: Path) -> None:
    state = made(made(place / "above", ME) / "state", ME, 0o700)
    os.chown(state.parent, ME, 0)  # the bits of a group of root's refuse nothing
    entries = [(0x01, 7, -1), (0x02, 7, OTHER), (0x04, 0, -1), (0x10, 7, -1), (0x20, 5, -1)]  # as the kernel keeps them
    data = struct.pack("<I", 2) + b"".join(struct.pack("<HHi", *entry) for entry in entries)
    try:
        os.setxattr(state.parent, "system.posix_acl_access", data)
    except OSError as error:
        pytest.skip(f"this file system has no access lists: {error.strerror}")
    assert judged(state, unshared=True).returncode == NOT_OURS
