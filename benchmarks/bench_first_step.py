"""Seconds from the command to the first DDP step: `clusterddp run` beside torchrun by hand over ssh, and torchrunx.

Ours from a warm server, the same over connections of `up --keep` ("kept"), once more after an edit of the script, with
a fork server of the run's own ("cold"), and plainly; all in one run, in turn, on the lab (root, Linux); medians of
ROUNDS with WORKERS a host on HOSTS. Ours includes connecting, checks and sync; for the others the code is there
already. torchrunx takes part where `make .venv/frameworks/.stamp` has made its environment, which all of them have
then. PSS of a worker is read at the end. Before the first round ours alone is run, so that caches and warm servers are
there.

    python benchmarks/bench_first_step.py [ROUNDS [WORKERS [HOSTS]]] [--import MODULE] [--without WAY,…]
    python benchmarks/bench_first_step.py 7 --all      # 2 × 1, 2 × 4, 4 × 1, 2 × 1 with transformers.trainer
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shlex
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from benchmarks.kept import kept_connections  # noqa: E402
from tests.lab import Lab  # noqa: E402 - the lab lives in the project, not in site-packages
from tests.lab.network import OPERATOR  # noqa: E402
from tests.lab.system import wait_until  # noqa: E402

if TYPE_CHECKING:
    from tests.lab.host import LabHost

KEPT_AIM = 0.7  # of the warm run's time without kept connections
SCRIPT = ROOT / "examples" / "toy_ddp.py"
WORDS = ("toy_ddp.py", "--steps", "2")
MARK = b"step 0 "
FRAMEWORKS = Path(sys.prefix) / "frameworks" / "bin" / "python"
PYTHON = str(FRAMEWORKS if FRAMEWORKS.exists() else sys.executable)
CLUSTERDDP = [str(Path(sys.executable).with_name("clusterddp")), "run"]
BY_HAND = "GLOO_SOCKET_IFNAME=eth0 OMP_NUM_THREADS=1"
TORCHRUNX = """
import logging, runpy, socket, sys, torchrunx
address, config, workers, script, *hosts = sys.argv[1:]
words = script.split()
def train():
    sys.argv[:] = words
    runpy.run_path(words[0], run_name="__main__")
if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO, stream=sys.stdout)
    socket.getfqdn = lambda name="": address  # this machine's name, if the hosts could look it up
    environment = {"GLOO_SOCKET_IFNAME": "eth0", "OMP_NUM_THREADS": "1"}
    launcher = torchrunx.Launcher(
        hostnames=hosts, workers_per_host=int(workers), ssh_config_file=config, backend=None, extra_env_vars=environment
    )
    launcher.run(train)
"""


class Case(NamedTuple):
    """Hosts, workers a host, a module that the script imports too, ways that are left out."""

    hosts: int
    workers: int
    module: str
    without: frozenset[str]

    @property
    def name(self) -> str:
        """For people."""
        return f"{self.hosts} hosts × {self.workers}{self.module and ' with ' + self.module}"


def first_step(commands: list[list[str]], folder: Path, env: dict[str, str] | None = None) -> float:
    """Seconds until any of the commands prints its first step; all are run to their end."""
    start = time.monotonic()
    children = [
        subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            cwd=folder,
            env={**os.environ, **(env or {})},
        )
        for command in commands
    ]
    stream = children[0].stdout
    assert stream
    seen = next((time.monotonic() - start for line in stream if MARK in line), None)
    for child in children:
        child.communicate()
    if seen is None:
        sys.exit(f"no step seen: {shlex.join(commands[0])}")
    return seen


def by_hand(lab: Lab, folder: Path, number: int, workers: int) -> list[list[str]]:
    """One ssh a host, as one would type them: rank 0's host holds the rendezvous."""
    commands = []
    for rank, host in enumerate(lab.hosts):
        words = [
            PYTHON, "-m", "torch.distributed.run", "--nnodes", str(len(lab.hosts)), "--nproc-per-node", str(workers),
            "--rdzv-backend", "c10d", "--rdzv-endpoint", f"{lab.hosts[0].address}:{29700 + number}",
            "--rdzv-id", f"bench{number}", "--rdzv-conf", f"is_host={'true' if rank == 0 else 'false'}",
            "--local-addr", host.address, *WORDS,
        ]  # fmt: skip
        commands.append(lab.ssh(host.name, f"cd {folder} && {BY_HAND} exec {shlex.join(words)}"))
    return commands


def torchrunx(lab: Lab, folder: Path, workers: int) -> tuple[list[list[str]], dict[str, str]]:
    """Its launcher on this machine, and the environment that it needs here."""
    (folder / "launch.py").write_text(TORCHRUNX)
    address = f"10.77.{lab.number}.{OPERATOR}"
    shown = subprocess.run(["ip", "-o", "-4", "addr"], capture_output=True, text=True, check=True).stdout
    card = next(line.split()[1] for line in shown.splitlines() if f" {address}/" in line)
    hosts = [host.address for host in lab.hosts]
    words = [PYTHON, "launch.py", address, str(lab.folder / "ssh_config"), str(workers), " ".join(WORDS), *hosts]
    return [words], {"GLOO_SOCKET_IFNAME": card, "TORCHRUNX_LOG_DIR": ""}


def has_warm_server(host: LabHost, package: str) -> bool:
    """Whether one is ready there that has imported the package; of an empty name, whichever. Ends if it is left out."""
    test = "test -S ~/.clusterddp/warm/*/fork.sock && cat ~/.clusterddp/warm/*/packages.json"
    found = host.run(["sh", "-c", test], check=False)
    told = json.loads(found.stdout) if found.returncode == 0 else {"packages": [], "left_out": []}
    left_out = [line for line in told["left_out"] if line.startswith(f"{package}: ")]
    if left_out:
        sys.exit(f"{host.name} leaves out {left_out[0]}")
    return found.returncode == 0 and (not package or package in told["packages"])


def edit(folder: Path, number: int) -> None:
    """Change the script, as one does between two runs."""
    with (folder / WORDS[0]).open("a") as script:
        script.write(f"# edit {number}\n")


def round_of(lab: Lab, project: Path, number: int, case: Case, kept: dict[str, str]) -> dict[str, float]:
    """Each way once, in round 0 ours alone: seconds by name; ``kept``: variables of where connections are kept."""
    workers = case.workers
    cold = str(project / "cold.yaml")
    ways: dict[str, tuple[list[list[str]], dict[str, str]]] = {
        "warm": ([[*CLUSTERDDP, *WORDS]], {}),
        "kept": ([[*CLUSTERDDP, *WORDS]], kept),
        "edited": ([[*CLUSTERDDP, *WORDS]], {}),
        "cold": ([[*CLUSTERDDP, "-i", cold, *WORDS]], {}),
        "plain": ([[*CLUSTERDDP, "--no-fork-server", *WORDS]], {}),
        "by hand": (by_hand(lab, project, number, workers), {}),
    }
    if FRAMEWORKS.exists():
        ways["torchrunx"] = torchrunx(lab, project, workers)
    seconds = {}
    for name, (commands, env) in ways.items():
        if name in case.without or (not number and name not in {"warm", "edited"}):
            continue
        if name in {"warm", "kept", "edited"} and number:
            for host in lab.hosts:
                wait_until("a warm server", partial(has_warm_server, host, case.module), 300)
        if name == "edited":
            edit(project, number)
        seconds[name] = first_step(commands, project, env)
    return seconds


def memory(lab: Lab, project: Path, workers: int) -> dict[str, float]:
    """PSS of a worker that has made its step, in MB, forked and by hand; with it what is shared by a host's workers."""
    with (project / WORDS[0]).open("a") as script:
        script.write("    import time\n    print('step 0 waits', flush=True)\n    time.sleep(600)\n")
    for host in lab.hosts:
        host.write(str(project / WORDS[0]), (project / WORDS[0]).read_text(), user="trainer")
    found = {}
    for name, commands in {
        "forked": [[*CLUSTERDDP, *WORDS]],
        "by hand": by_hand(lab, project, 99, workers),
    }.items():
        children = [
            subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, cwd=project)
            for command in commands
        ]
        waiting = 0
        for line in children[0].stdout or ():
            waiting += b"waits" in line
            if waiting == (workers * len(lab.hosts) if len(children) == 1 else workers):
                break
        for what, pids in of_one_host(lab.hosts[0]).items():
            if pids:
                found[f"{name} {what}"] = sum(map(pss, pids)) / len(pids) / 1024
        for child in children:
            child.send_signal(signal.SIGINT)
            child.terminate() if len(children) > 1 else None
            child.wait()
        for host in lab.hosts if len(children) > 1 else ():
            host.run(["pkill", "-f", WORDS[0]], user="trainer", check=False)
    return found


def of_one_host(host: LabHost) -> dict[str, list[int]]:
    """Its processes by what they are."""
    found: dict[str, list[int]] = {"worker": [], "agent": [], "keeper or server": []}
    for one in host.processes():
        line = " ".join(one.cmdline)
        if line.startswith("clusterddp: fork server"):
            found["keeper or server"].append(one.pid)
        elif line.startswith(PYTHON) and f"-u {WORDS[0]}" in line:
            found["worker"].append(one.pid)
        elif line.startswith(PYTHON) and "torch.distributed.run" in line:
            found["agent"].append(one.pid)
    return found


def pss(pid: int) -> int:
    """KiB."""
    text = Path(f"/proc/{pid}/smaps_rollup").read_text()
    return next(int(line.split()[1]) for line in text.splitlines() if line.startswith("Pss:"))


def measure(case: Case, rounds: int) -> None:
    """One lab: its rounds, the medians, the memory."""
    variables: dict[str, object] = {"clusterddp_python": PYTHON, "clusterddp_fork_server": True}
    variables |= {"clusterddp_nproc": case.workers, "clusterddp_preload": [case.module] if case.module else []}
    # The folder has one name here and on the hosts: torchrunx changes to the launcher's.
    with tempfile.TemporaryDirectory(dir="/var/tmp") as folder:
        project = Path(folder)
        project.chmod(0o755)
        shutil.copy(SCRIPT, project)
        if case.module:
            text = SCRIPT.read_text().replace("import torch\n", f"import torch\nimport {case.module}\n", 1)
            (project / WORDS[0]).write_text(text)
        with Lab(case.hosts, variables=variables) as lab, contextlib.ExitStack() as opened:
            os.environ["CLUSTERDDP_INVENTORY"] = str(lab.inventory)
            for host in lab.hosts:
                host.write(str(project / WORDS[0]), (project / WORDS[0]).read_text(), user="trainer")
            lab.write_inventory(project / "cold.yaml", more={"all": {"clusterddp_warm": 0}})
            taken: dict[str, list[float]] = {}
            kept = opened.enter_context(kept_connections(lab.inventory, project))
            for number in range(rounds + 1):
                seconds = round_of(lab, project, number, case, kept)
                shown = ", ".join(f"{name} {took:.2f} s" for name, took in seconds.items())
                print(f"{case.name}, round {number} (load {os.getloadavg()[0]:.0f}): {shown}", flush=True)
                for name, took in seconds.items() if number else ():
                    taken.setdefault(name, []).append(took)
            report(taken, case.name)
            for name, size in memory(lab, project, case.workers).items():
                print(f"{case.name}, PSS, {name}: {size:.0f} MB", flush=True)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser()
    parser.add_argument("rounds", type=int, nargs="?", default=5)
    parser.add_argument("workers", type=int, nargs="?", default=1)
    parser.add_argument("hosts", type=int, nargs="?", default=2)
    parser.add_argument("--import", dest="module", default="", help="that the script imports too")
    parser.add_argument("--without", default="", help="ways to leave out, with commas between")
    parser.add_argument("--all", action="store_true", help="2 × 1, 2 × 4, 4 × 1, 2 × 1 with transformers.trainer")
    wanted = parser.parse_args()
    start, without = time.monotonic(), frozenset(wanted.without.split(","))
    cases = [(wanted.hosts, wanted.workers, wanted.module)]
    if wanted.all:
        cases = [(2, 1, ""), (2, 4, ""), (4, 1, ""), (2, 1, "transformers.trainer")]
    for hosts, workers, module in cases:
        measure(Case(hosts, workers, module, without), wanted.rounds)
    print(f"all of it took {(time.monotonic() - start) / 60:.1f} minutes")


def report(taken: dict[str, list[float]], what: str) -> None:
    """Medians, and of each round's ratios to its peers."""
    for name, own in taken.items():
        line = f"{what}, first step, median of {len(own)}: {name} {statistics.median(own):.2f} s"
        for peer in ("by hand", "torchrunx"):
            if peer in taken:
                ratio = statistics.median(a / b for a, b in zip(own, taken[peer], strict=True))
                line += f", {ratio:.2f}× {peer}"
        if name == "kept" and "warm" in taken:
            ratio = statistics.median(a / b for a, b in zip(own, taken["warm"], strict=True))
            line += f", {ratio:.2f}× warm (aim {KEPT_AIM})"
        print(line)


if __name__ == "__main__":
    main()
