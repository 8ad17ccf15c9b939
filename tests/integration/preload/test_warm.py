"""A run begun from the host's warm server, with packages preloaded: it ends as any other, `down` ends the server."""

from __future__ import annotations

import sysconfig
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.integration.cli import User, wait_until_nothing_is_left
from tests.integration.fork_server.test_fork_server import events
from tests.lab.system import wait_until
from tests.lean import training_python
from tests.remedies import remedy, type_line

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.lab import Lab
    from tests.lab.host import LabHost

pytestmark = pytest.mark.torch
WAITS = remedy("cli/output.py", "{}: a warm server waits for the next run ({} at most); `clusterddp down` ends it")
PACKAGES = {  # installed on the host: a harmless one, and one as Lightning, which asks for its rank
    "ahead": "NAME = 'ahead'\n",
    "ranked": "import os\nRANK = os.environ.get('RANK', '0')\n",
}
SUMS = """
import sys
before = "ahead" in sys.modules, "ranked" in sys.modules
import os, torch, ahead, ranked
assert ranked.RANK == os.environ["RANK"]
import torch.distributed as dist
dist.init_process_group("gloo")
value = torch.ones(1)
dist.all_reduce(value)
print("sum", value.item(), sys.argv[1:], before, flush=True)
dist.destroy_process_group()
if os.environ["TORCHELASTIC_RESTART_COUNT"] == "0" and "dies" in sys.argv:
    os.kill(os.getpid(), 9)
"""


def servers(host: LabHost) -> list[int]:
    """Warm servers on the host."""
    return [one.pid for one in host.processes() if one.cmdline == ("clusterddp: warm server",)]


def warm(host: LabHost) -> bool:
    """Whether one is ready."""
    return host.run(["sh", "-c", "test -S ~/.clusterddp/warm/*/fork.sock"], check=False).returncode == 0


def holds(pid: int, text: str) -> bool:
    """Whether a text stands anywhere in a process's memory."""
    maps = Path(f"/proc/{pid}/maps").read_text().splitlines()
    places = [one.split()[0].split("-") for one in maps if one.split()[1][0] == "r" and not one.endswith("[vvar]")]
    with Path(f"/proc/{pid}/mem").open("rb", buffering=0) as memory:
        for start, end in ((int(first, 16), int(last, 16)) for first, last in places):
            try:
                memory.seek(start)
                found = text.encode() in memory.read(end - start)
            except (OSError, OverflowError):  # the kernel's own pages
                continue
            if found:
                return True
    return False


def test_the_second_run_is_begun_from_the_first_ones_warm_server_and_down_ends_that(
    make_lab: Callable[..., Lab], tmp_path: Path
) -> None:
    unsaid = {"clusterddp_fork_server": None}  # as it is where an inventory says nothing
    named = {"clusterddp_preload": ["ahead", "ranked", "no-such-one"]}
    lab = make_lab(1, variables={"clusterddp_python": training_python(), "clusterddp_nproc": 2, **named, **unsaid})
    host = lab.hosts[0]
    user = User(tmp_path)
    user.write("train.py", SUMS)
    site = Path(sysconfig.get_path("purelib"))
    for name, text in PACKAGES.items():
        host.write(str(site / name / "__init__.py"), text, user="root")
        host.write(str(site / f"{name}-1.0.dist-info" / "RECORD"), f"{name}/__init__.py,,\n", user="root")
    lab.write_inventory(user.folder / "inventory.yaml")
    words = ("run", "-i", "inventory.yaml", "-v", "--max-restarts", "1")
    up = user.run("up", "inventory.yaml", "--warm", "10m")
    assert (up.code, "gpu00: a warm server imports torch, and waits 10m00s for a run" in up.err) == (0, True), up.err
    wait_until("the warm server", lambda: warm(host), 90)
    (server,) = servers(host)

    user.env["HF_TOKEN"] = secret = "only-this-run-has-it"
    first = user.run(*words, "--secret", "HF_TOKEN", "train.py", "one")
    assert first.code == 0, first.err
    assert holds(server, "clusterddp: warm server")  # what is there is found
    assert not holds(server, secret)
    assert [one for one in events(host, first.run) if one["event"] == "from_warm_server"], first.err
    assert sorted(line.text for line in first.workers) == ["sum 2.0 ['one'] (True, False)"] * 2, first.err
    left_out = "clusterddp: gpu00: clusterddp_preload leaves out "
    assert f"{left_out}ranked: it reads RANK when it is imported\n" in first.err
    assert f"{left_out}no-such-one: no module or distribution of that name is installed\n" in first.err

    second = user.run(*words, "train.py", "two", "dies")
    assert second.code == 0, second.err
    assert sorted(line.text for line in second.workers) == ["sum 2.0 ['two', 'dies'] (True, False)"] * 4
    assert "gpu00: preloaded: ahead\n" in second.err
    told = events(host, second.run)
    assert len([one for one in told if one["event"] == "from_warm_server"]) == 1, second.err
    assert servers(host) == [server]
    assert [one["forked"] for one in told if "forked" in one] == [True] * 5
    assert not [one for one in told if one["event"] in {"not_forked", "not_warm"}]
    wait_until_nothing_is_left(lab.hosts, second.run)

    user.write("train.py", "import os\nos.environ['OMP_NUM_THREADS'] = '1'\nprint('here')\n")
    host.write(str(site / "ahead" / "__init__.py"), "NAME = 'another'\n", user="root")
    third = user.run(*words, "train.py")
    assert third.code == 0, third.err
    said = f"clusterddp: gpu00: not from the warm server: {site}/ahead/__init__.py has changed since it was started\n"
    assert third.err.count(said) == 1, third.err
    assert "gpu00: not from the fork server: " in third.err
    assert "train.py:2 sets OMP_NUM_THREADS, which torch may read when it is imported" in third.err
    assert [line.text for line in third.workers] == ["here"] * 2
    wait_until_nothing_is_left(lab.hosts, third.run)

    wait_until("another warm server", lambda: warm(host), 90)
    assert servers(host) != [server]

    another_person_has_a_warm_start(lab, tmp_path / "laptop")

    it_is_named_and_down_ends_it(user, host)


def another_person_has_a_warm_start(lab: Lab, base: Path) -> None:
    """Somebody on another machine, with a project of his own, on the same account of the hosts."""
    base.mkdir()
    laptop = User(base)
    laptop.env["LOGNAME"] = "somebody"
    laptop.write("train.py", "print('there')\n")
    lab.write_inventory(laptop.folder / "inventory.yaml")
    done = laptop.run("run", "-i", "inventory.yaml", "-v", "train.py")
    assert done.code == 0, done.err
    assert [line.text for line in done.workers] == ["there"] * 2
    assert [one for one in events(lab.hosts[0], done.run) if one["event"] == "from_warm_server"], done.err
    assert "not from the warm server" not in done.err
    wait_until_nothing_is_left(lab.hosts, done.run)


def it_is_named_and_down_ends_it(user: User, host: LabHost) -> None:
    """The host's warm server, in `status -v` and `up`."""
    told_of = "clusterddp: gpu00: a warm server waits for the next run ("
    status = ("status", "-i", "inventory.yaml")
    assert told_of not in user.run(*status).err
    for shows in ((*status, "-v"), ("up", "inventory.yaml")):
        said = user.run(*shows).err
        assert told_of in said
    (ends,) = WAITS.commands(said)
    down = type_line(user, f"{ends} --yes")
    assert (down.code, "1 warm server" in down.err) == (0, True), down.err
    wait_until("the warm server's end", lambda: not servers(host))
