"""STARTS runs in a row from the warm server: whether each worker sees what it sees plainly, and how long each takes.

On one lab host (root, Linux) with WORKERS. The script tells everything it can see of how it was started (the table of
tests/integration/worker/test_shim_transparency.py) and its seeds; the first run is a plain one, and all others are
compared with that. A run that takes three times the median is shown with where its time went.

    python benchmarks/bench_starts.py [STARTS [WORKERS]]
"""

from __future__ import annotations

import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from tests.integration.fork_server.test_fork_server import events  # noqa: E402
from tests.integration.fork_spool import LOADED  # noqa: E402 - tests live in the project, not in site-packages
from tests.integration.preload.test_warm import warm  # noqa: E402
from tests.integration.shim_spool import PROBES, without_addresses  # noqa: E402
from tests.lab import Lab  # noqa: E402
from tests.lab.system import wait_until  # noqa: E402
from tests.lean import WHOLE_TORCH  # noqa: E402

if TYPE_CHECKING:
    from tests.lab.host import LabHost

CLUSTERDDP = [str(Path(sys.executable).with_name("clusterddp")), "run"]
TIMELINE = "line.txt"
# Of each run, or of each connection.
OWN = ("CLUSTERDDP_RUN_ID", "CLUSTERDDP_RUN_DIR", "MASTER_PORT", "TORCHELASTIC_RUN_ID", "TORCHELASTIC_ERROR_FILE")
OWN_PREFIXES = ("SSH_", "XDG_SESSION", "TORCHINDUCTOR_CACHE_DIR")
TELLS = """
import random, torch, numpy, multiprocessing
print("seeds", json.dumps([
    torch.initial_seed(), random.random(), numpy.random.rand(), multiprocessing.current_process().authkey.hex()]))
for name, value in report().items():
    text = json.dumps(value)
    print("table", name, text if len(text) < 20000 else __import__("hashlib").sha256(text.encode()).hexdigest())
for name in ("cmdline", "comm", "limits", "coredump_filter", "personality", "timerslack_ns"):
    print("table", "/proc:" + name, json.dumps(open("/proc/self/" + name).read()))
"""
Table = dict[str, Any]


def script() -> str:
    """The probe, which prints in place of writing a file."""
    probe = (PROBES / "looks.py").read_text().replace("import sys\n", f"{LOADED}import sys\n", 1)
    probe = probe.replace('sys.modules["posix"].environ', 'getattr(sys.modules["posix"], "env" "iron")')
    probe = probe.replace("os.environ", 'getattr(os, "env" "iron")')  # what may set any variable is not forked
    return probe.partition("if __name__")[0] + TELLS


def tables(out: str) -> tuple[dict[str, Table], list[list[Any]]]:
    """What each worker saw, by its label, and the seeds of all."""
    seen: dict[str, Table] = {}
    seeds = []
    for line in out.splitlines():
        label, _, text = line.partition("] ")
        kind, _, rest = text.partition(" ")
        if kind == "seeds":
            seeds.append(json.loads(rest))
        elif kind == "table":
            name, _, value = rest.partition(" ")
            cleaned = without_addresses(value.encode()).decode()
            seen.setdefault(label, {})[name] = comparable(
                name, json.loads(cleaned) if cleaned[:1] in '[{"' else cleaned
            )
    return seen, seeds


def comparable(name: str, value: Any) -> Any:
    """Without what each run has of its own."""
    if name in {"environ", "posix"}:
        kept = {key: text for key, text in value.items() if not key.startswith(OWN_PREFIXES)}
        return {key: "of the run" if key in OWN else text for key, text in kept.items()}
    if name == "environ_order":
        return [key for key in value if not key.startswith(OWN_PREFIXES)]
    if name == "path_cache":
        return [path for path in value if "/clusterddp/" not in path]  # the script's folder
    return value


def differences(plain: dict[str, Table], seen: dict[str, Table]) -> list[str]:
    """What workers saw otherwise."""
    found = [] if sorted(plain) == sorted(seen) else [f"workers {sorted(seen)}"]
    for label, table in seen.items():
        wanted = plain.get(label, {})
        found += [
            f"{label}] {name}: {str(wanted.get(name))[:300]} → {str(table.get(name))[:300]}"
            for name in sorted({*wanted, *table})
            if wanted.get(name) != table.get(name)
        ]
    return found


def start(folder: Path, *words: str) -> tuple[str, str, float]:
    """A run to its end: stdout, stderr, seconds."""
    began = time.monotonic()
    command = [*CLUSTERDDP, "-v", "--timeline", TIMELINE, *words, "train.py"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"code {done.returncode}: {done.stdout}\n{done.stderr}")
    return done.stdout, done.stderr, time.monotonic() - began


def is_warm(host: LabHost, err: str) -> bool:
    """Whether that run came from the warm server, all of it forked."""
    found = re.search(r"run ([a-z0-9]{10}): ", err)
    told = events(host, found[1] if found else "")
    begun = any(one["event"] == "from_warm_server" for one in told)
    return begun and not any(one.get("forked") is False for one in told)


def main() -> None:
    """Run, compare, print."""
    starts, workers = (int(word) for word in [*sys.argv[1:], *("100", "1")[len(sys.argv) - 1 :]][:2])
    variables = {**WHOLE_TORCH, "clusterddp_fork_server": True, "clusterddp_nproc": workers}
    taken: list[float] = []
    wrong, slow, plainly = 0, 0, 0
    with Lab(1, variables=variables) as lab, tempfile.TemporaryDirectory() as name:
        folder, host = Path(name), lab.hosts[0]
        (folder / "train.py").write_text(script())
        os.environ["CLUSTERDDP_INVENTORY"] = str(lab.inventory)
        plain, seeds = tables(start(folder, "--no-fork-server")[0])
        start(folder)  # leaves the warm server
        for number in range(starts):
            wait_until("a warm server", partial(warm, host), 300)
            out, err, took = start(folder)
            seen, own = tables(out)
            seeds += own
            found = differences(plain, seen)
            plainly += not is_warm(host, err)
            print("".join(f"start {number}: {line}\n" for line in found), end="", flush=True)
            wrong += bool(found)
            if len(taken) > 4 and took > 3 * statistics.median(taken):
                slow += 1
                print(f"start {number} took {took:.1f} s (load {os.getloadavg()[0]:.0f})", err, sep="\n", flush=True)
                print((folder / TIMELINE).read_text(), flush=True)
            taken.append(took)
    drawn = sum(len(set(values)) == len(seeds) for values in zip(*seeds, strict=True))
    taken.sort()
    print(
        f"{starts} starts × {workers}: {wrong} with a difference, {plainly} not warm or not forked, {drawn} of 4 kinds"
        f" of seeds never drawn twice; seconds to the end: median {statistics.median(taken):.2f},"
        f" 90 % {taken[int(0.9 * len(taken))]:.2f}, most {taken[-1]:.2f}; {slow} took three times the median"
    )


if __name__ == "__main__":
    main()
