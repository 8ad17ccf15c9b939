"""A spare takes the place of a node that cannot be reached when a run starts. Real torchrun on lab hosts."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.integration.cli import WAIT, user_of, wait_until_nothing_is_left
from tests.with_torch import need_torch

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from tests.conftest import MakeLab
    from tests.integration.cli import User
    from tests.lab import Lab

need_torch()
pytestmark = pytest.mark.torch

SCRIPT = (
    WAIT
    + """
print("of", os.environ["WORLD_SIZE"], flush=True)
wait_for("/tmp/go")
"""
)


def with_spares(lab: Lab, folder: Path, spares: Sequence[str], script: str = SCRIPT) -> User:
    """A user of the lab, some of whose hosts are spares."""
    more: dict[str, dict[str, object]] = {name: {"clusterddp_role": "spare"} for name in spares}
    return user_of(lab, folder, {"train.py": script}, more=more)


def let_go(lab: Lab, names: Sequence[str]) -> None:
    for name in names:
        lab.host(name).write("/tmp/go", "")


@pytest.mark.parametrize("relaunch", [False, True], ids=["plain", "relaunch"])
def test_it_has_the_place_of_a_host_that_is_off(make_lab: MakeLab, tmp_path: Path, relaunch: bool) -> None:  # noqa: FBT001
    lab = make_lab(4, connect_timeout=2)
    user = with_spares(lab, tmp_path, ["gpu02", "gpu03"])
    lab.host("gpu00").power_off()
    done = user.run("run", "--detach", *(["--relaunch", "1"] if relaunch else []), "train.py")
    assert done.code == 0, done.err
    run = done.out.strip()
    (said,) = [note for note in done.notes if "gpu00" in note]
    assert said.startswith("spare gpu02 takes the place of gpu00: no answer from ")
    with user.start("logs", "-f", run) as live:
        live.wait_for("[0 gpu02:0] of 2")
        live.wait_for("[1 gpu01:0] of 2")
    status = user.status(run)
    assert (status["replaced"], [host["name"] for host in status["hosts"]]) == ({"gpu00": "gpu02"}, ["gpu02", "gpu01"])
    assert [host["name"] for host in status["spares"]] == (["gpu03"] if relaunch else [])
    shown = user.run("status", run)
    assert "gpu00 could not be reached at the start; spare gpu02 has its place" in shown.lines
    assert not [note for note in shown.notes if "gpu00" in note]  # nobody has asked it, so it held nothing up
    lab.host("gpu00").boot()
    assert user.status(run)["state"] == "running"
    ended = user.run("stop", run)
    assert ended.code == 0, ended.err
    assert not [note for note in ended.notes if "gpu00" in note]
    wait_until_nothing_is_left(lab.hosts, run)
    assert not lab.host("gpu00").run(["sh", "-c", f"grep -rl {run} . || true"]).stdout
    assert lab.host("gpu00").run(["sh", "-c", "ls -d clusterddp 2>/dev/null || true"]).stdout == ""


def test_neither_a_refused_connection_nor_a_silent_host_is_waited_for(make_lab: MakeLab, tmp_path: Path) -> None:
    lab = make_lab(3, connect_timeout=2)
    user = with_spares(lab, tmp_path, ["gpu02"], "print('here', flush=True)\n")
    host = lab.host("gpu01")
    for fault, why in ((host.reject, "refused"), (host.drop, "no answer from")):
        fault(22)
        done = user.run("run", "train.py")
        host.heal()
        assert done.code == 0, done.err
        assert sorted((said.rank, said.host) for said in done.workers) == [(0, "gpu00"), (1, "gpu02")]
        (said,) = [note for note in done.notes if note.startswith("spare gpu02 takes the place of gpu01: ")]
        assert why in said


def test_where_there_are_too_few_or_none_the_run_does_not_start(make_lab: MakeLab, tmp_path: Path) -> None:
    lab = make_lab(4, connect_timeout=2)
    user = with_spares(lab, tmp_path, ["gpu03"])
    lab.host("gpu01").power_off()
    lab.host("gpu02").power_off()
    done = user.run("run", "train.py")
    assert done.code == 125
    assert "2 nodes cannot be reached, and 1 spare could replace them" in done.notes
    assert any(note.startswith("gpu01: no answer ") for note in done.notes)
    assert any(note.startswith("gpu02: no answer ") for note in done.notes)
    lab.write_inventory(user.folder / "inventory.yaml", hosts=["gpu00", "gpu01", "gpu03"])
    done = user.run("run", "train.py")
    assert done.code == 125
    assert [note for note in done.notes if "spare" in note] == []
    assert done.notes[-1].startswith("gpu01: no answer ")


def test_a_host_that_answers_and_refuses_us_is_not_replaced(make_lab: MakeLab, tmp_path: Path) -> None:
    lab = make_lab(3)
    user = with_spares(lab, tmp_path, ["gpu02"])
    lab.host("gpu01").write(".ssh/authorized_keys", "", mode=0o600)
    done = user.run("run", "train.py")
    assert done.code == 125
    assert "trainer@" in done.notes[-1]
    assert not [note for note in done.notes if "takes the place" in note]


def test_an_elastic_run_is_filled_up_by_spares_to_its_most(make_lab: MakeLab, tmp_path: Path) -> None:
    lab = make_lab(4, connect_timeout=2)
    user = with_spares(lab, tmp_path, ["gpu03"])
    lab.host("gpu01").power_off()
    with user.start("run", "--nnodes", "1:3", "train.py") as live:
        for rank, host in enumerate(["gpu00", "gpu03", "gpu02"]):
            live.wait_for(f"[{rank} {host}:0] of 3")
        lab.host("gpu01").boot()  # its place is taken: it does not join
        let_go(lab, ["gpu00", "gpu02", "gpu03"])
        done = live.end()
    assert done.code == 0, done.err
    assert user.status(done.run)["replaced"] == {"gpu01": "gpu03"}
    assert not lab.host("gpu01").run(["sh", "-c", "ls -d clusterddp 2>/dev/null || true"]).stdout
    lab.host("gpu01").power_off()
    done = user.run("run", "--nnodes", "2:2", "train.py")  # enough answer
    assert done.code == 0, done.err
    assert sorted((said.rank, said.host) for said in done.workers) == [(0, "gpu00"), (1, "gpu02")]
