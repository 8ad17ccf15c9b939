"""What messages of runs tell a user to type about a host's disk and about silent hosts is typed as it was printed."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.integration.cli import User, assert_nothing_left
from tests.integration.launch.test_remedies_runs import WAITS, refused, typed
from tests.remedies import remedy
from tests.with_torch import need_torch

if TYPE_CHECKING:
    from pathlib import Path

    from tests.conftest import MakeLab


@pytest.fixture
def user(tmp_path: Path) -> User:
    made = User(tmp_path)
    made.env["CLUSTERDDP_INVENTORY"] = "inventory.yaml"
    made.write("waits.py", WAITS)
    return made


DISK_FULL = remedy(
    "runs/view/known_messages/machines.py",
    "free some on that host (`df -h`, `df -i`, `quota`), or set clusterddp_workdir to a larger one",
)
UNHEARD = remedy("runs/follow.py", "`clusterddp status {}`")


def test_a_job_has_room_once_some_is_freed_or_its_folder_is_on_a_larger_disk(make_lab: MakeLab, user: User) -> None:
    need_torch()
    lab = make_lab(1)
    host = lab.host("gpu00")
    host.small_disk("/small", "1m")
    user.write("saves.py", "with open('last.pt', 'wb') as out:\n    out.write(bytes(200_000))\nprint('saved')\n")
    small = {"clusterddp_workdir": "/small/work"}
    lab.write_inventory(user.folder / "inventory.yaml", more={"all": small})
    typed(user, "clusterddp run --no-doctor saves.py")
    host.run(["rm", "/small/work/last.pt"])
    host.run(["dd", "if=/dev/zero", "of=/small/mine", "bs=1k", "count=900"])
    refused(user, "clusterddp run --no-doctor saves.py", DISK_FULL, code=1)
    lab.write_inventory(user.folder / "inventory.yaml", more={"all": {"clusterddp_workdir": "~/larger"}})
    assert "saved" in typed(user, "clusterddp run --no-doctor saves.py")
    lab.write_inventory(user.folder / "inventory.yaml", more={"all": small})
    host.run(["rm", "/small/mine"])
    assert "saved" in typed(user, "clusterddp run --no-doctor saves.py")


def test_a_run_whose_hosts_did_not_answer_is_asked_for_later(make_lab: MakeLab, user: User) -> None:
    need_torch()
    lab = make_lab(1, connect_timeout=2)
    host = lab.host("gpu00")
    lab.write_inventory(user.folder / "inventory.yaml")
    with user.start("run", "waits.py", "/never") as live:
        live.wait_for("waits")
        host.power_off()
        live.wait_for("asks later", stream="err")
        (line,) = UNHEARD.commands(live.text("err"))
        host.boot()
        assert live.run in typed(user, line)


CUT_OFF = remedy(
    "runs/view/notices.py", "is {}, and nothing proves that its processes ended: `clusterddp stop {}` ends them"
)


def test_a_host_that_was_cut_off_while_the_others_ended_is_ended_by_the_told_command(
    make_lab: MakeLab, user: User
) -> None:
    need_torch()
    lab = make_lab(3, connect_timeout=2)
    *others, cut_off = lab.hosts
    lab.write_inventory(user.folder / "inventory.yaml")
    with user.start("run", "--nnodes", "2:3", "--max-restarts", "1", "waits.py", "/tmp/go on") as live:
        live.wait_for("waits", times=3)
        for host in others:  # they hear nothing of it until the end
            host.drop(proto="all", direction="both", peer=cut_off.address)
        cut_off.drop(proto="all", direction="both")
        live.wait_for("waits", times=5)  # the others start again without it
        for host in others:
            host.write("/tmp/go on", "")
        done = live.end()
    assert done.code == 0, done.err
    cut_off.heal()  # the operator reaches it again
    status = f"clusterddp status {done.run}"
    told = typed(user, status)
    assert CUT_OFF.printed(told) == ("running", done.run)
    assert cut_off.leftovers(done.run)
    (stop,) = CUT_OFF.commands(told)
    assert f"{cut_off.name}: 0 processes" not in typed(user, stop)
    assert_nothing_left(lab.hosts, done.run)
    assert f"{cut_off.name} answers again: its part was stopped" in typed(user, status)
