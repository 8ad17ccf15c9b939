"""GPUs that clusterddp_gpus names: that they are there, and that the others are not judged."""

from __future__ import annotations

from typing import Any

import pytest

from clusterddp.facts.host import TorchFacts
from clusterddp.remote.shared.probes.gpu_records import Xid
from clusterddp.remote.shared.probes.health_records import Cgroup, PortOwner
from tests.unit.checks.test_checks_gpus import UUIDS, with_gpus
from tests.unit.evidence_made import card, said, wrong
from tests.unit.facts_made import gpus

LEFT_OUT: list[dict[str, Any]] = [
    {"repair_failed": True}, {"uncorrectable": 3}, {"slowdowns": ("hw_slowdown",)}, {"width": 4}, {"mig": True},
    {"fabric_state": "In Progress"},
]  # fmt: skip


@pytest.mark.parametrize("fields", LEFT_OUT, ids=str)
@pytest.mark.parametrize("named", ["0", "GPU-gpu02-0"])
def test_a_gpu_that_the_inventory_leaves_out_is_not_judged(fields: dict[str, Any], named: str) -> None:
    cards = (card(0, UUIDS[0]), card(1, UUIDS[1], **fields))
    assert said(with_gpus(entry={"gpus": (named,)}, gpu_health={"cards": cards})) == []
    found = said(with_gpus(entry={"gpus": ("1",)}, gpu_health={"cards": cards}))
    assert {hosts for _, _, hosts in found} == {("gpu02",)}


def test_errors_and_processes_of_a_gpu_that_is_left_out_are_not_told() -> None:
    entry = {"gpus": ("0",)}
    xid = Xid(xid=79, bus="0000:01:00", times=1, seconds_ago=60)
    assert said(with_gpus(entry=entry, gpu_health={"xids": (xid,)})) == []
    elsewhere = xid._replace(bus="0000:07:00")  # a GPU that has fallen off the bus has no card any more
    assert said(with_gpus(entry=entry, gpu_health={"xids": (elsewhere,)})) == [("xids", "fail", ("gpu02",))]
    cards = gpus(2, machine="gpu02", busy=(1,))
    owners = {4711: PortOwner(user="bob", command="python")}
    assert said(with_gpus(entry=entry, gpus=cards, health={"owners": owners})) == []
    assert said(with_gpus(entry={"gpus": ("1",)}, gpus=cards, health={"owners": owners})) == [
        ("busy-gpus", "fail", ("gpu02",))
    ]


def test_a_host_needs_cores_and_memory_for_workers_of_the_named_gpus_alone() -> None:
    for group, cores in ((Cgroup(), 1), (Cgroup(cpu_thousandths=1000, memory_left=1 << 30), 2)):
        scarce = {"cores": cores, "health": {"cgroup": group}}
        alone = {name for name, _, _ in said(with_gpus(entry={"gpus": ("0",)}, **scarce))}
        every = {name for name, _, _ in said(with_gpus(**scarce))}
        assert every - alone == ({"cores"} if cores == 1 else {"cgroup"})


def test_of_a_host_whose_mig_instances_are_named_every_gpu_is_judged() -> None:
    cards = (card(0, UUIDS[0], mig=True, instances=2), card(1, UUIDS[1], mig=True, instances=2, repair_failed=True))
    found = said(with_gpus(entry={"gpus": ("MIG-5",)}, gpu_health={"cards": cards}))
    assert ("gpu-health", "fail", ("gpu02",)) in found


ROCM = TorchFacts(version="2.7.0+rocm6.3", hip="6.3", gloo=True, nccl_available=True, device_count=2)


@pytest.mark.parametrize(
    ("named", "fields"),
    [
        (("0", "1"), {"torch": ROCM, "gpus": (), "pci_nvidia": 0, "pci_amd": 2}),
        (("GPU-gpu02-1",), {}),
        (("GPU-gpu0",), {}),
        (("MIG-5",), {}),
    ],
    ids=["ROCm", "UUID", "beginning of a UUID", "MIG"],
)
def test_gpus_that_a_run_would_take_by_these_names_are_there(named: tuple[str, ...], fields: dict[str, Any]) -> None:
    assert "gpus" not in [name for name, _, _ in said(with_gpus(entry={"gpus": named}, **fields))]


def test_a_named_gpu_that_is_not_there_or_hidden_is_told_as_a_run_would() -> None:
    (result,) = wrong(with_gpus(entry={"gpus": ("0", "9")}))
    assert (result.name, result.verdict, result.hosts) == ("gpus", "fail", ("gpu02",))
    assert (result.message, result.fix) == (
        "clusterddp_gpus names GPU 9, but the host has: 0, 1",
        "correct clusterddp_gpus",
    )
    hidden = {"gpus": gpus(4, machine="gpu02"), "pci_nvidia": 4, "visible_devices": "0,1"}
    assert ("gpus", "fail", ("gpu02",)) in said(with_gpus(entry={"gpus": ("0", "3")}, **hidden))


def test_a_container_with_some_of_the_gpus_on_the_bus_is_a_warning() -> None:
    (result,) = wrong(with_gpus(pci_nvidia=8))
    assert (result.verdict, result.message) == ("warn", "nvidia-smi lists 2 of 8 GPUs on the PCI bus")


def test_a_job_that_got_some_of_the_gpus_is_no_warning() -> None:
    assert wrong(with_gpus(pci_nvidia=8, visible_devices="0,1")) == []
