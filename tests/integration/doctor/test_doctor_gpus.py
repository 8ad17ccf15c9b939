"""The doctor on real hosts with made GPUs: all is well, a GPU falls ill and is named with its host alone, and recovers.

The hosts are real, the GPUs are not: what their driver prints is made (tests/integration/gpus_made.py). On a machine
with GPUs: tests/gpu. Judgements over made values: tests/unit/checks/test_checks_gpus.py.
"""

from __future__ import annotations

import contextlib
import subprocess
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest

from tests.integration import doctor_cli
from tests.integration.cli import User
from tests.integration.gpus_made import TORCH_ENV, MadeGpus

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from contextlib import AbstractContextManager

    from tests.integration.doctor_cli import Named
    from tests.lab import Lab

pytestmark = pytest.mark.lab
SICK, HEAT = "gpu01", "clocks_event_reason_hw_thermal_slowdown>"


@pytest.fixture(scope="module")
def lab_variants() -> dict[str, Any]:
    return {"users": ("trainer", "bob")}


@pytest.fixture(scope="module")
def sick(three: Lab) -> MadeGpus:
    """The GPUs that fall ill, among healthy ones on all hosts."""
    return {host.name: MadeGpus(host) for host in three.hosts}[SICK]


@pytest.fixture(scope="module")
def user(three: Lab, sick: MadeGpus, tmp_path_factory: pytest.TempPathFactory) -> User:
    assert sick.host.running
    made = User(tmp_path_factory.mktemp("user"))
    made.up(three.write_inventory(more={"all": TORCH_ENV}))
    return made


def named(user: User, *words: str) -> tuple[int, list[Named]]:
    """The exit code, and what is wrong with GPUs."""
    return doctor_cli.named(user, "--only", "GPUs", *words)


@dataclass(frozen=True, kw_only=True)
class Fault:
    """How a GPU falls ill, and what is said of its host."""

    inject: Callable[[MadeGpus], AbstractContextManager[None]]
    name: str
    verdict: str
    words: str


def says(old: str, new: str) -> Callable[[MadeGpus], AbstractContextManager[None]]:
    return lambda made: made.second(f"<{old}<", f"<{new}<")


def link_down(made: MadeGpus) -> AbstractContextManager[None]:
    first, mark, second = made.texts["links.txt"].rpartition("GPU 1:")
    return made.file("links.txt", first + mark + second.replace("26.562 GB/s", "<inactive>", 1))


@contextlib.contextmanager
def fabric_down(made: MadeGpus) -> Iterator[None]:
    """Then no GPU starts, which is not told again."""
    with made.second("<state>Completed<", "<state>Not Started<"), made.torch(_0="raise", _1="raise"):
        yield


def lost(made: MadeGpus) -> AbstractContextManager[None]:
    gone = "[Unknown Error]"
    row = f"1, {gone}, [GPU is lost], {gone}, {gone}, 550.54.15, {gone}, 00000000:2A:00.0"
    return made.file("gpus.csv", made.texts["gpus.csv"].splitlines()[0] + f"\n{row}\n")


FAULTS = {
    "memory error": Fault(
        inject=says("dram_uncorrectable>0", "dram_uncorrectable>2"),
        name="gpu-health",
        verdict="fail",
        words="GPU 1: 2 uncorrectable memory errors",
    ),
    "row to be repaired": Fault(
        inject=says("remapped_row_pending>No", "remapped_row_pending>Yes"),
        name="gpu-health",
        verdict="fail",
        words="GPU 1: bad memory that only a reset",
    ),
    "row not repaired": Fault(
        inject=says("remapped_row_failure>No", "remapped_row_failure>Yes"),
        name="gpu-health",
        verdict="fail",
        words="GPU 1: its memory has errors that cannot be repaired",
    ),
    "heat": Fault(
        inject=says(
            "clocks_event_reason_hw_thermal_slowdown>Not Active", "clocks_event_reason_hw_thermal_slowdown>Active"
        ),
        name="gpu-speed",
        verdict="warn",
        words="GPU 1: slowed down by heat at 31 °C",
    ),
    "power limit": Fault(
        inject=says("current_power_limit>700.00 W", "current_power_limit>350.00 W"),
        name="gpu-speed",
        verdict="warn",
        words="GPU 1: limited to 350 W, 700 W are its default",
    ),
    "lanes": Fault(
        inject=says("current_link_width>16x", "current_link_width>4x"),
        name="pcie-width",
        verdict="warn",
        words="GPU 1: 4 PCIe lanes of 16, 16 on others of its kind",
    ),
    "fabric": Fault(
        inject=fabric_down,
        name="fabric-manager",
        verdict="fail",
        words="GPU 1: its place in the NVLink fabric: Not Started",
    ),
    "mig": Fault(
        inject=says("current_mig>Disabled", "current_mig>Enabled"),
        name="mig",
        verdict="fail",
        words="GPU 1: MIG is on, and it has no instance",
    ),
    "link": Fault(inject=link_down, name="nvlink", verdict="warn", words="GPU 1: 17 of 18 NVLinks are up"),
    "hanging nvidia-smi": Fault(
        inject=lambda made: made.file("hangs", ""),
        name="nvidia-smi",
        verdict="fail",
        words="nvidia-smi did not answer within 30 s",
    ),
    "xid": Fault(
        inject=lambda made: made.xid(79, "GPU has fallen off the bus."),
        name="xids",
        verdict="fail",
        words="GPU 1: Xid 79, the GPU has fallen off the bus",
    ),
    "closed log": Fault(
        inject=lambda made: made.file("closed", ""),
        name="xids",
        verdict="unknown",
        words="the kernel log may not be read by this user",
    ),
    "lost": Fault(inject=lost, name="gpus", verdict="fail", words="nvidia-smi says: 1, [Unknown Error], [GPU is lost]"),
    "start": Fault(
        inject=lambda made: made.torch(_1="raise"),
        name="gpu-start",
        verdict="fail",
        words="cuda:1: CUDA error: system not yet initialized",
    ),
    "crash": Fault(
        inject=lambda made: made.torch(_0="crash"),
        name="gpu-start",
        verdict="fail",
        words="cuda:0: torch ended with status -11",
    ),
    "architecture": Fault(
        inject=lambda made: made.torch(arches=["sm_70", "sm_80"]),
        name="architecture",
        verdict="fail",
        words="this torch is built for sm_70, sm_80, not for sm_90",
    ),
    "copies": Fault(
        inject=lambda made: made.torch(**{"0-1": "garbage"}),
        name="peer-copies",
        verdict="fail",
        words="what is copied between GPUs arrives changed: cuda:0 → 1",
    ),
}


def test_healthy_gpus_pass_every_check(user: User) -> None:
    assert named(user, "--strict") == (0, [])
    done = user.run("doctor", "--json", "--only", "GPUs")
    verdicts = {one["name"]: one["verdict"] for one in done.json["checks"] if one["category"] == "GPUs"}
    assert set(verdicts.values()) == {"pass"}
    assert {"nvidia-smi", "xids", "architecture", "gpu-start", "peer-copies"} <= set(verdicts)


@pytest.mark.parametrize("fault", FAULTS.values(), ids=list(FAULTS))
def test_a_gpu_that_falls_ill_is_named_with_its_host(user: User, sick: MadeGpus, fault: Fault) -> None:
    with fault.inject(sick):
        code, found = named(user)
    assert [one[:3] for one in found] == [(fault.name, fault.verdict, (SICK,))], found
    assert fault.words in found[0][3]
    assert code == int(fault.verdict == "fail")


def test_nothing_is_said_of_gpus_that_are_healed(user: User) -> None:
    """The last fault is gone as each before it was: nothing but the next was named."""
    assert named(user) == (0, [])


@contextlib.contextmanager
def running(made: MadeGpus, user: str) -> Iterator[int]:
    """A process of somebody that the driver lists on the second GPU; its pid on the host."""
    argv = made.host.argv(["sh", "-c", "echo $$; exec sleep 600"], user)
    with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout
        pid = int(process.stdout.readline())
        with made.file("apps.csv", f"{made.uuids[1]}, {pid}, 40000\n"):
            yield pid
        process.kill()


def test_a_gpu_that_somebody_uses_fails_unless_it_is_shared_and_is_left_alone(user: User, sick: MadeGpus) -> None:
    with running(sick, "bob") as pid:
        alone = named(user)
        shared = named(user, "--share-gpus")
        done = user.run("doctor", "--json", "--only", "GPUs")
    message = f"GPU 1 is busy: bob's sleep (pid {pid}), 1 MiB used"
    assert alone == (1, [("busy-gpus", "fail", (SICK,), message)])
    assert shared == (0, [("busy-gpus", "warn", (SICK,), message)])
    tried = [one for one in done.json["checks"] if one["name"] == "gpu-start" and SICK in one["hosts"]]
    assert [(one["verdict"], one["message"]) for one in tried] == [("skipped", "its GPUs are in use")]
    assert named(user) == (0, [])
