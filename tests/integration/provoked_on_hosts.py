"""What a job by hand prints where the doctor names a fault: `python -m tests.integration.provoked_on_hosts [NAME…]`.

Real torchrun with gloo on two lab hosts, as a user would start it without us. Writes tests/data/symptoms/NAME.txt,
which the symptoms of the doctor's checks are tested against (tests/unit/checks/test_symptoms.py). Takes root and
minutes.
"""

from __future__ import annotations

import contextlib
import re
import subprocess
import sys
import textwrap
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from tests.integration.doctor import test_doctor as doctor
from tests.lab import Lab
from tests.lab.system import command, let_pass
from tests.lean import WHOLE_TORCH

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from contextlib import AbstractContextManager

    from tests.lab.host import LabHost

FOLDER = Path(__file__).parents[1] / "data" / "symptoms"
PORT, WAIT = 29500, 15  # seconds that a process group waits
LONGEST = 12000  # characters of a host's
SCRIPT = """
    import datetime, os, torch, torch.distributed as dist
    dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=%d))
    one = torch.ones(1)
    dist.all_reduce(one)
    print("reduced", one.item(), flush=True)
    dist.destroy_process_group()
"""


@contextlib.contextmanager
def nothing(_host: LabHost) -> Iterator[None]:
    yield


def shut(*target: str) -> Callable[[LabHost], AbstractContextManager[None]]:
    """A firewall that lets no new connections from outside to ephemeral ports through."""

    @contextlib.contextmanager
    def injected(host: LabHost) -> Iterator[None]:
        rule = ("-A", "INPUT", "-i", "eth0", "-p", "tcp", "--syn", "--dport", doctor.EPHEMERAL, "-j", *target)
        command("ip", "netns", "exec", host.namespace, "iptables", "-w", *rule)
        yield
        host.heal()

    return injected


@contextlib.contextmanager
def dropped_rendezvous(host: LabHost) -> Iterator[None]:
    host.drop(PORT)
    yield
    host.heal()


@dataclass(frozen=True, kw_only=True, slots=True)
class Case:
    """A fault, and how the job is started.

    Attributes:
        fault: What is broken.
        hosts: On how many of the hosts.
        env: Variables of both hosts.
        later: Seconds by which the second agent is started later.
        seconds: When an agent is ended that has not ended by itself.
    """

    fault: Callable[[LabHost], AbstractContextManager[None]]
    hosts: int = 2
    env: Mapping[str, str] = field(default_factory=dict)
    later: float = 0.0
    seconds: int = 60


CASES: dict[str, Case] = {
    "network-drop": Case(fault=shut("DROP")),
    "network-reject": Case(fault=shut("REJECT", "--reject-with", "icmp-host-prohibited")),
    "ports-drop": Case(fault=dropped_rendezvous, hosts=1),
    "interface": Case(fault=nothing, env={"GLOO_SOCKET_IFNAME": "eno1"}),
    "own-name": Case(fault=doctor.loopback_name),
    "clock": Case(fault=doctor.clock, hosts=1, later=8.0, seconds=45),
}


def said(lab: Lab, case: Case) -> str:
    """What both hosts print, the first one's before; each agent's own words and its worker's."""
    with contextlib.ExitStack() as stack:
        for host in lab.hosts[: case.hosts]:
            stack.enter_context(case.fault(host))
        agents: list[subprocess.Popen[str]] = []
        for host in lab.hosts:
            let_pass(case.later if agents else 0.0)
            agents.append(_agent(host, lab.hosts[0], case))
        texts = [_ended(host, agent, case.seconds) for host, agent in zip(lab.hosts, agents, strict=True)]
    return "".join(text if len(text) < LONGEST else text[-LONGEST:].partition("\n")[2] for text in texts)


def _ended(host: LabHost, agent: subprocess.Popen[str], seconds: int) -> str:
    try:
        text, _ = agent.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        agent.kill()
        text = agent.communicate()[0] + f"(it had not ended after {seconds} s)\n"
    return "".join(
        f"{host.name}: {line}\n" for line in text.splitlines() if line.strip() and " frame #" not in f" {line}"
    )


def _agent(host: LabHost, first: LabHost, case: Case) -> subprocess.Popen[str]:
    host.write("train.py", textwrap.dedent(SCRIPT % WAIT))
    words = ["--nnodes=2", "--rdzv-backend=c10d", f"--rdzv-endpoint={first.address}:{PORT}", "--rdzv-id=1"]
    words.append(f"--rdzv-conf=is_host={host is first},join_timeout=30,read_timeout=20")
    argv = [sys.executable, "-m", "torch.distributed.run", *words, "train.py"]
    return subprocess.Popen(
        host.argv(argv, env={"OMP_NUM_THREADS": "1", **case.env}),
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL, text=True,
    )  # fmt: skip


def main(names: list[str]) -> int:
    """Record the named cases, or all."""
    import torch  # noqa: PLC0415 - heavy, and not needed to read the table

    FOLDER.mkdir(exist_ok=True)
    library = str(Path(torch.__file__).parents[1])
    with Lab(2, variables=WHOLE_TORCH) as lab:
        assert "reduced 2.0" in said(lab, Case(fault=nothing)), "healthy hosts cannot train"
        for name in names or CASES:
            text = said(lab, CASES[name])
            text = text.replace(library, "/opt/train/lib/python3.11/site-packages").replace(sys.base_prefix, "/usr")
            text = re.sub(r"10\.77\.\d+\.", "10.77.1.", text.replace(sys.prefix, "/opt/train"))
            head = f"# provoked by `python -m tests.integration.provoked_on_hosts {name}`, torch {torch.__version__}\n"
            (FOLDER / f"{name}.txt").write_text(head + text)
            print(f"{name}: {text.strip().splitlines()[-1][:200]}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
