"""No host is taken for lost that is there: a run with --relaunch on three lab hosts, for minutes of bad weather.

Every core works on something else, the disk is written to without a pause, and every ten seconds a fifth of all packets
between the hosts is lost for five, each way. Says how it went; fails if any attempt but the first began.

    python -m tests.chaos.soak [MINUTES] [--calm]     30 by default; --calm: no load but what the machine has already
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

from tests.chaos import invariants
from tests.integration.cli import WAIT, User
from tests.lab.system import let_pass
from tests.own_lab import own_lab

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.lab import Lab

SHARE = 0.106  # on its way out and again on its way in: a fifth
STORM, CALM = 5.0, 5.0  # seconds
SCRIPT = f"""{WAIT}
print("at work", flush=True)
wait_for("/tmp/go")
"""
BURN = "while True: pass"
WRITE = """
import os, sys
block = os.urandom(1 << 20)
while True:
    with open(sys.argv[1], "wb") as out:
        for _ in range(1024):
            out.write(block)
        os.fsync(out.fileno())
"""


@contextlib.contextmanager
def weather(folder: Path) -> Iterator[None]:
    """Every core and the disk at work."""
    programs = [[BURN]] * (os.cpu_count() or 1) + [[WRITE, str(folder / "written")]]
    started = [subprocess.Popen([sys.executable, "-c", *words]) for words in programs]
    try:
        yield
    finally:
        for one in started:
            one.kill()
            one.wait()


def storms(lab: Lab, minutes: float) -> int:
    """Lose packets again and again; how often."""
    deadline, count = time.monotonic() + 60 * minutes, 0
    while time.monotonic() < deadline:
        for host in lab.hosts:
            host.lose(SHARE)
        let_pass(STORM)
        for host in lab.hosts:
            host.heal()
        let_pass(CALM)
        count += 1
    return count


def main(words: list[str]) -> int:
    """0 when the first attempt came through."""
    minutes = next((float(word) for word in words if not word.startswith("-")), 30.0)
    with own_lab(3) as lab, tempfile.TemporaryDirectory() as folder:
        user = User(Path(folder))
        user.write("train.py", SCRIPT)
        lab.write_inventory(user.folder / "inventory.yaml")
        user.env["CLUSTERDDP_INVENTORY"] = "inventory.yaml"
        (run,) = user.run("run", "--detach", "--relaunch", "9", "train.py").lines
        with contextlib.ExitStack() as stack:
            if "--calm" not in words:
                stack.enter_context(weather(Path(folder)))
            count = storms(lab, minutes)
        told = user.status(run)
        for host in lab.hosts:
            host.write("/tmp/go", "")
        done = user.run("logs", "--follow", run)
        print(f"{minutes:g} minutes, {count} storms: attempt {told['attempt']}, {told['state']}; then {done.notes[-1]}")
        user.run("stop", run, "--grace", "0")
        lost = (told["attempt"], told["state"], done.code) != (1, "running", 0)
        if lost:
            print("\n".join(done.notes), invariants.recorded(lab.hosts, run), sep="\n")
        return int(lost)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
