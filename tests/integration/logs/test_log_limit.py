"""A run under a small log limit: its hosts keep no more, training never waits, and every reader is told of the gap."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING

import pytest

from tests.integration.cli import WAIT, User, nothing_left
from tests.lab.system import wait_until
from tests.with_torch import need_torch

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.lab import Lab
    from tests.lab.host import LabHost

need_torch()
pytestmark = pytest.mark.torch

LINES, SIZE, KEPT = 100_000, 100, 2 << 20  # of rank 0: 10 MB, of which 2 are to stay
FLOODED, END = "/tmp/limit: has flooded", "/tmp/limit: end"
FLOODS = f"""{WAIT}
if os.environ["RANK"] == "0":
    for number in range({LINES}):
        sys.stdout.write("%0{SIZE - 1}d\\n" % number)
    sys.stdout.flush()
    open({FLOODED!r}, "w").close()
else:
    print("a quiet rank", flush=True)
wait_for({END!r})
print("the end", flush=True)
"""


@pytest.fixture
def user(lab: Lab, tmp_path: Path) -> Iterator[User]:
    user = User(tmp_path)
    lab.write_inventory(user.folder / "inventory.yaml", hosts=["gpu00"], more={"gpu00": {"clusterddp_nproc": 2}})
    user.env["CLUSTERDDP_INVENTORY"] = "inventory.yaml"
    user.write("floods.py", FLOODS)
    user.write("pyproject.toml", f'[tool.clusterddp]\nlog-limit = "{KEPT}"\n')
    with nothing_left(lab):
        yield user
    lab.host("gpu00").run(["rm", "-f", FLOODED, END])


def kept(host: LabHost, run: str) -> int:
    """Bytes that the run's output takes on the host's disk."""
    folder = f".clusterddp/runs/{run}/1/0-gpu00/logs"
    return 1024 * int(host.run(["du", "-sk", folder]).stdout.split()[0])


def test_the_oldest_output_goes_and_whoever_reads_is_told(user: User, lab: Lab) -> None:
    host = lab.host("gpu00")
    with user.start("run", "floods.py") as live:
        run = live.run
        wait_until("the flood is over", lambda: host.run(["test", "-e", FLOODED], check=False).returncode == 0, 120)
        wait_until("the limit holds", lambda: kept(host, run) < KEPT + (1 << 18), 60)
        live.wait_for(f"{LINES - 1}\n")
        host.write(END, "")
        done = live.end()
    assert done.code == 0
    notice = rf"gpu00: the oldest (\d+) bytes of output are gone: --log-limit {KEPT}"
    assert re.fullmatch(notice, done.notes[-2])
    again = user.run("logs", run)
    (gap,) = [note for note in again.notes if "dropped: " in note]
    dropped = re.fullmatch(r"\[0 gpu00:0\] dropped: (\d+) bytes, the log limit was reached", gap)
    assert dropped
    shown = [said.text for said in again.workers if said.rank == 0]
    first = int(shown[0])
    assert int(dropped[1]) == first * SIZE > (LINES * SIZE - KEPT)
    assert shown == [*(f"{number:0{SIZE - 1}d}" for number in range(first, LINES)), "the end"]
    assert [said.text for said in again.workers if said.rank == 1] == ["a quiet rank", "the end"]
    records = [json.loads(line) for line in user.run("logs", "--json", "--rank", "0", run).lines]
    assert (records[0]["offset"], records[0]["next"], records[0]["dropped"]) == (0, first * SIZE, first * SIZE)
    assert (records[0]["text"], records[1]["offset"]) == ("", first * SIZE)
    assert user.run("logs", "--tail", "1", "--rank", "0", run).notes[1:] == []
    assert user.run("logs", "--save", "files", run).code == 0
    saved = (user.folder / "files" / "1.0" / "rank0-gpu00-0.out").read_bytes()
    assert saved[first * SIZE :].splitlines()[0] == shown[0].encode()
    assert len(saved) == LINES * SIZE + len("the end\n")
