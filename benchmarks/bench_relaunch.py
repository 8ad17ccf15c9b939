"""Seconds from a host's power cut to the trainer's next step on the hosts that are left; samples lost or doubled.

`--nnodes 2:3 --relaunch 1` with examples/trainer.py on three lab hosts (root, Linux); every step saves. Two faults in
turn: the power of rank 0's host (store, rank 0 and the lead of run control at once), and that of another host, while
the survivors hang in a collective. With the fork server, as runs are if nothing else is said; with "--plain" without.
torchrun by hand has no answer to either: its store dies with rank 0's host, and with another host gone and no worker
crashing it starts nothing again.

    python benchmarks/bench_relaunch.py [ROUNDS [--plain]]
"""

from __future__ import annotations

import re
import statistics
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from tests.integration.cli import EXAMPLES, Live, User  # noqa: E402 - tests live in the project, not in site-packages
from tests.lab import Lab  # noqa: E402
from tests.lean import WHOLE_TORCH  # noqa: E402

SIZES = ("--samples", "1920", "--global-batch", "48", "--micro-batch", "4", "--save-every", "1", "--epochs", "3")
PATIENCE = 180.0
WORLD = re.compile(r"resumed after \d+ samples of \d workers, now (\d)")
STEP = re.compile(r"seen (\d+) loss")


def until(live: Live, pattern: re.Pattern[str], start: int = 0) -> re.Match[str]:
    """The first match in its output behind ``start``."""
    deadline = time.monotonic() + PATIENCE
    while not (found := pattern.search(live.text(), start)):
        if time.monotonic() > deadline:
            sys.exit(f"{pattern.pattern!r} never came: {live.text()[-2000:]}{live.text('err')[-2000:]}")
        time.sleep(0.02)
    return found


def recovery(lost: str) -> float:
    """One run, one power cut; seconds to the next step in a world of two. Ends the benchmark if samples went astray."""
    variables = {**WHOLE_TORCH, "clusterddp_fork_server": "--plain" not in sys.argv}
    with Lab(3, variables=variables) as lab, tempfile.TemporaryDirectory() as folder:
        user = User(Path(folder))
        (user.folder / "trainer.py").write_text((EXAMPLES / "trainer.py").read_text())
        lab.write_inventory(user.folder / "inventory.yaml")
        words = ("run", "-i", "inventory.yaml", "--nnodes", "2:3", "--relaunch", "1", "--max-restarts", "3")
        with user.start(*words, "trainer.py", *SIZES, "--show-samples") as live:
            until(live, re.compile(r"seen 480 loss"))
            lab.host(lost).power_off()
            began, at = time.monotonic(), len(live.text())
            resumed = until(live, WORLD, at)
            until(live, STEP, resumed.end())
            took = time.monotonic() - began
            if resumed[1] != "2":
                sys.exit(f"{lost}: it went on with {resumed[1]} workers")
            done = live.end()
        wrong = astray(done.out)
        if done.code or wrong:
            sys.exit(f"{lost}: code {done.code}, {done.err[-1000:]}; {wrong}")
        return took


def astray(text: str) -> str:
    """Whether any sample of an epoch was left out or taken twice by the steps that count: the last telling of each.

    Lines of different hosts come in no order; a share of a worker tells its world.
    """
    shares: dict[int, dict[int, list[int]]] = {}  # step → share of a worker → samples
    for after, numbers in re.findall(r"\] after (\d+): ([\d ]*)", text):
        taken = list(map(int, numbers.split()))
        shares.setdefault(int(after), {}).setdefault(len(taken), []).extend(taken)
    for epoch in range(3):
        steps = [step for after, step in shares.items() if epoch * 1920 < after <= (epoch + 1) * 1920]
        seen = sorted(number for step in steps for number in step[max(step)])  # the smaller world was later
        if seen != list(range(1920)):
            return f"epoch {epoch}: {len(seen)} samples, {len(set(seen))} different"
    return ""


def main() -> None:
    """Both faults in turn, ROUNDS times."""
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 3
    times: dict[str, list[float]] = {"gpu00": [], "gpu02": []}
    for _ in range(rounds):
        for lost, taken in times.items():
            taken.append(recovery(lost))
            print(f"power of {lost} cut → next step at world size 2: {taken[-1]:5.1f} s", flush=True)
    for lost, taken in times.items():
        middle, most = statistics.median(taken), max(taken)
        print(
            f"{lost}: {len(taken)} of {rounds} recovered, median {middle:.1f} s, at most {most:.1f} s, no sample astray"
        )


if __name__ == "__main__":
    main()
