"""The doctor's judgements of GPUs over made evidence: a fault is named with its host and GPU, and nothing else is."""

from __future__ import annotations

import contextlib
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clusterddp.checks.catalog.gpu_health import MEANINGS, PROGRAM_XIDS
from clusterddp.checks.catalog.gpu_smoke import _built_for
from clusterddp.checks.engine import judge, select
from clusterddp.checks.evidence import Answer
from clusterddp.checks.needs import GPU_HEALTH
from clusterddp.errors import HelperError
from clusterddp.facts.read_facts import read_answer
from clusterddp.remote.shared.probes.gpu_records import Card, GpuCopies, GpuHealth, GpuSmokeTest, GpuStart, Xid
from clusterddp.remote.shared.probes.health_records import PortOwner
from tests.unit.evidence_made import card, cluster, gpu_health, judged, said, seen, with_answers, wrong
from tests.unit.facts_made import gpu_health_json, gpus

if TYPE_CHECKING:
    from clusterddp.checks.evidence import Evidence
    from clusterddp.checks.model import CheckResult

NAMES = ("gpu01", "gpu02", "gpu03")
UUIDS = ("GPU-gpu02-0", "GPU-gpu02-1")
HOUR, DAY = 3600, 86400


def with_gpus(**fields: Any) -> Evidence:
    """A cluster with two GPUs a host, whose second host differs."""
    return cluster(*(seen(name, *NAMES, devices=2, **(fields if name == "gpu02" else {})) for name in NAMES))


def ailing(**fields: Any) -> Evidence:
    """Its second host's second GPU differs."""
    cards = (card(0, UUIDS[0]), card(1, UUIDS[1], **fields))
    return with_gpus(gpu_health={"cards": cards})


def tried(**fields: Any) -> Evidence:
    """Its second host's GPUs were tried with another outcome."""
    healthy = gpu_health(*UUIDS).smoke_test
    assert healthy
    return with_gpus(gpu_health={"smoke_test": healthy._replace(**fields)})


CARDS: list[tuple[dict[str, Any], str, str, str]] = [
    ({"uncorrectable": 3}, "gpu-health", "fail", "GPU 1: 3 uncorrectable memory errors since it was last reset"),
    ({"repair_pending": True}, "gpu-health", "fail", "GPU 1: bad memory that only a reset takes out of use"),
    ({"repair_failed": True}, "gpu-health", "fail", "GPU 1: its memory has errors that cannot be repaired"),
    ({"recovery": "Node Reboot"}, "gpu-health", "fail", "GPU 1: the driver asks for 'Node Reboot'"),
    ({"slowdowns": ("hw_slowdown",), "celsius": 91}, "gpu-speed", "warn", "(heat or power) at 91 °C"),
    ({"slowdowns": ("hw_slowdown", "hw_thermal_slowdown")}, "gpu-speed", "warn", "GPU 1: slowed down by heat at 30 °C"),
    ({"slowdowns": ("hw_power_brake_slowdown",)}, "gpu-speed", "warn", "slowed down by the power supply"),
    ({"power_watts": 300}, "gpu-speed", "warn", "GPU 1: limited to 300 W, 700 W are its default"),
    ({"width": 4}, "pcie-width", "warn", "GPU 1: 4 PCIe lanes of 16, 16 on others of its kind"),
    ({"mig": True}, "mig", "fail", "GPU 1: MIG is on, and it has no instance"),
    ({"mig": True, "instances": 7}, "mig", "warn", "GPU 1: MIG is on, off on others"),
    ({"fabric_state": "In Progress"}, "fabric-manager", "warn", "GPU 1: its place in the NVLink fabric: In Progress"),
    ({"fabric_state": "Completed", "fabric_status": "Error 15"}, "fabric-manager", "warn", "NVLink fabric: Error 15"),
]


@pytest.mark.parametrize(("fields", "name", "verdict", "words"), CARDS, ids=[f"{row[1]} {row[3]}" for row in CARDS])
def test_a_gpu_that_ails_is_named(fields: dict[str, Any], name: str, verdict: str, words: str) -> None:
    results = wrong(ailing(**fields))
    assert {(one.name, one.hosts) for one in results} == {(name, ("gpu02",))}
    assert results[0].verdict == verdict
    assert words in results[0].message
    assert results[0].symptom
    assert results[0].fix


@pytest.mark.parametrize(
    "fields",
    [
        {"uncorrectable": None, "width": None, "most_width": None, "power_watts": None, "celsius": None},
        {"fabric_state": "Completed", "fabric_status": "Success"},
        {"slowdowns": ("an unknown reason",)},
        {"power_watts": 800},
    ],
)
def test_what_is_well_or_not_told_is_no_fault(fields: dict[str, Any]) -> None:
    assert said(ailing(**fields)) == []


def test_gpus_with_the_same_fault_are_told_together() -> None:
    cards = tuple(card(index, f"GPU-gpu02-{index}", power_watts=400) for index in range(8))
    (result,) = wrong(with_gpus(gpu_health={"cards": cards}))
    assert result.message == "GPU 0-7: limited to 400 W, 700 W are its default"


def test_hosts_whose_gpus_are_cut_otherwise_are_named() -> None:
    cards = tuple(card(index, f"GPU-gpu02-{index}", mig=True, instances=2) for index in range(2))
    (result,) = wrong(with_gpus(gpu_health={"cards": cards}))
    assert (result.name, result.verdict, result.hosts) == ("mig", "warn", ("gpu02",))
    assert result.message == "MIG is on, off on most hosts"


def test_an_nvidia_smi_that_hangs_is_told_once() -> None:
    silent = {"cards": (), "error": "nvidia-smi did not answer within 30 s", "smoke_test": None}
    assert said(with_gpus(gpu_health=silent)) == [("nvidia-smi", "fail", ("gpu02",))]


def by_name(evidence: Evidence, host: str) -> dict[str, CheckResult]:
    results = judge(evidence, select())
    return {one.name: one for one in results if one.category == "GPUs" and host in one.hosts}


def test_hosts_without_nvidia_gpus_are_skipped_not_judged() -> None:
    evidence = cluster(seen("gpu02", *NAMES, devices=2, gpus=(), pci_nvidia=0, pci_amd=2))
    found = by_name(evidence, "gpu02")
    judged = {"gpus", "driver", "busy-gpus", "gpus-equal", "gpu-start"}
    assert {name for name, one in found.items() if one.verdict == "skipped"} >= set(found) - judged
    assert not [one for one in found.values() if one.verdict in ("unknown", "fail") and one.name != "gpus"]
    alone = by_name(cluster(count=1), "gpu01")
    assert alone["xids"].message == "no NVIDIA GPU there"


def test_gpus_that_are_in_use_are_not_tried() -> None:
    found = by_name(with_gpus(gpu_health={"smoke_test": None}), "gpu02")
    for name in ("architecture", "gpu-start", "peer-copies"):
        assert (found[name].verdict, found[name].message) == ("skipped", "its GPUs are in use")


# (number, how long ago, verdict or none)
XIDS = [
    (79, HOUR, "fail"),
    (79, 3 * DAY, "warn"),
    (79, 40 * DAY, ""),
    (48, 60, "fail"),
    (63, 60, "warn"),
    (31, 60, ""),
    (999, 60, "warn"),
]


@pytest.mark.parametrize(("number", "ago", "verdict"), XIDS)
def test_an_xid_is_told_with_its_gpu_and_what_to_do(number: int, ago: int, verdict: str) -> None:
    told = (Xid(xid=number, bus="0000:01:00", times=2, seconds_ago=ago, text="some words"),)
    results = wrong(with_gpus(gpu_health={"xids": told}))
    assert [(one.name, one.verdict, one.hosts) for one in results] == (
        [("xids", verdict, ("gpu02",))] if verdict else []
    )
    for one in results:
        assert one.message.startswith(f"GPU 1: Xid {number}, ")
        assert one.fix


def test_an_xid_says_how_often_and_when() -> None:
    told = (Xid(xid=79, bus="0000:99:00", times=1, seconds_ago=3 * HOUR),)
    (result,) = wrong(with_gpus(gpu_health={"xids": told}))
    assert result.message == "PCI 0000:99:00: Xid 79, the GPU has fallen off the bus, 3 h ago"


def test_a_kernel_log_that_may_not_be_read_is_unknown() -> None:
    assert said(with_gpus(gpu_health={"xids_error": "may not be read"})) == [("xids", "unknown", ("gpu02",))]


def test_numbers_of_programs_are_not_in_the_table() -> None:
    assert not PROGRAM_XIDS & set(MEANINGS)
    assert all(one.action and one.verdict in ("fail", "warn") for one in MEANINGS.values())


def linked(*up: int, there: int = 18) -> Evidence:
    """Hosts whose GPUs have so many links up, two a host."""
    hosts = []
    for place, name in enumerate(NAMES):
        links = {f"GPU-{name}-{index}": (count, there) for index, count in enumerate(up[2 * place : 2 * place + 2])}
        hosts.append(seen(name, *NAMES, devices=2, gpu_health={"links": links}))
    return cluster(*hosts)


def test_a_gpu_with_fewer_links_than_others_of_its_kind_is_named() -> None:
    assert said(linked(18, 18, 18, 18, 18, 18)) == []
    assert said(linked(4, 4, 4, 4, 4, 4, there=12)) == []  # bridges that were never bought
    (result,) = wrong(linked(18, 18, 18, 17, 18, 18))
    assert (result.name, result.verdict, result.hosts) == ("nvlink", "warn", ("gpu02",))
    assert result.message == "GPU 1: 17 of 18 NVLinks are up, 18 on others of its kind"
    (result,) = wrong(linked(18, 18, 0, 0, 18, 18))
    assert result.message.startswith("GPU 0, 1: 0 of 18 NVLinks")
    unlisted = {"GPU-gpu02-0": (18, 18), "GPU-gpu02-1": (0, 0)}
    (result,) = wrong(with_gpus(gpu_health={"links": unlisted}))
    assert result.message == "GPU 1: all NVLinks are down, 18 on others of its kind"
    assert said(linked(0, 0, 0, 0, 0, 0, there=0)) == []


def test_links_of_which_nobody_tells_are_unknown() -> None:
    assert said(with_gpus(gpu_health={"links_error": "no answer"})) == [("nvlink", "unknown", ("gpu02",))]


def narrow(width: int) -> Evidence:
    """Hosts on which every GPU has so many lanes of sixteen."""
    wide = [tuple(card(index, f"GPU-{name}-{index}", width=width) for index in range(2)) for name in NAMES]
    hosts = zip(NAMES, wide, strict=True)
    return cluster(*(seen(name, *NAMES, devices=2, gpu_health={"cards": cards}) for name, cards in hosts))


def test_half_of_the_lanes_everywhere_is_how_those_machines_are() -> None:
    assert said(narrow(8)) == []
    assert said(narrow(4)) == [("pcie-width", "warn", NAMES)]


def test_switches_without_their_manager_are_told() -> None:
    dead: dict[str, Any] = {"switches": 6, "fabric_manager": "inactive", "smoke_test": None}
    (result,) = wrong(with_gpus(gpu_health=dead))
    assert (result.name, result.verdict) == ("fabric-manager", "fail")
    assert result.message == "there are 6 NVSwitches, and nvidia-fabricmanager is inactive"
    assert said(with_gpus(gpu_health={**dead, "fabric_manager": "active"})) == []
    assert said(with_gpus(gpu_health={"switches": 0, "fabric_manager": "inactive"})) == []
    # In a container nobody tells of the service, or the machine beneath runs it: GPUs that start prove that it runs.
    assert said(with_gpus(gpu_health={"switches": 6})) == []
    assert said(with_gpus(gpu_health={"switches": 6, "fabric_manager": "inactive"})) == []
    assert said(with_gpus(gpu_health={"switches": 6, "smoke_test": None})) == [
        ("fabric-manager", "unknown", ("gpu02",))
    ]


def test_a_dead_fabric_manager_explains_gpus_that_do_not_start() -> None:
    starts = tuple(GpuStart(number=index, error="Error 802: system not yet initialized") for index in range(2))
    dead = {"switches": 6, "fabric_manager": "failed", "smoke_test": GpuSmokeTest(starts=starts)}
    assert said(with_gpus(gpu_health=dead)) == [("fabric-manager", "fail", ("gpu02",))]
    outside = tuple(card(index, f"GPU-gpu02-{index}", fabric_state="Not Started") for index in range(2))
    (result,) = wrong(with_gpus(gpu_health={"cards": outside, "smoke_test": GpuSmokeTest(starts=starts)}))
    assert (result.name, result.verdict) == ("fabric-manager", "fail")
    assert result.message == "GPU 0, 1: its place in the NVLink fabric: Not Started"


def test_infiniband_that_cannot_reach_gpus_is_told() -> None:
    (result,) = wrong(with_gpus(gpu_health={"mellanox": ("mlx5_0",)}))
    assert (result.name, result.verdict) == ("gpu-direct", "warn")
    for fields in ({"peer_memory": True}, {"open_driver": True}):
        assert said(with_gpus(gpu_health={"mellanox": ("mlx5_0",), **fields})) == []


def test_a_gpu_that_does_not_start_is_named() -> None:
    starts = (
        GpuStart(number=0, capability=(9, 0), arches=("sm_90",)),
        GpuStart(number=1, error="no answer within 60 s"),
    )
    (result,) = wrong(tried(starts=starts, peers=None))
    assert (result.name, result.verdict, result.hosts) == ("gpu-start", "fail", ("gpu02",))
    assert result.message == "cuda:1: no answer within 60 s"


def test_a_torch_not_built_for_the_gpus_is_told_once() -> None:
    starts = tuple(
        GpuStart(number=index, capability=(12, 0), arches=("sm_80", "sm_90"), error="no kernel image is available")
        for index in range(2)
    )
    (result,) = wrong(tried(starts=starts, peers=None))
    assert (result.name, result.verdict) == ("architecture", "fail")
    assert result.message == "cuda:0, 1: this torch is built for sm_80, sm_90, not for sm_120"


@pytest.mark.parametrize(
    ("arch", "capability", "runs"),
    [
        ("sm_90", (9, 0), True),
        ("sm_80", (8, 6), True),
        ("sm_86", (8, 0), False),
        ("sm_80", (9, 0), False),
        ("compute_80", (9, 0), True),
        ("compute_90", (8, 0), False),
        ("sm_90a", (9, 0), True),
        ("sm_100a", (10, 3), False),
        ("sm_100f", (10, 3), True),
        ("compute_90a", (12, 0), False),
        ("sm_120", (12, 1), True),
        ("gfx90a", (9, 0), False),
    ],
)
def test_code_runs_on_its_own_major_version_and_ptx_on_all_newer(
    arch: str, capability: tuple[int, int], *, runs: bool
) -> None:
    assert _built_for([arch], capability) == runs


def test_copies_between_gpus_that_do_not_arrive_are_named() -> None:
    (result,) = wrong(tried(peers=GpuCopies(hangs=(0, 1))))
    assert (result.name, result.verdict, result.hosts) == ("peer-copies", "fail", ("gpu02",))
    assert result.message == "a copy from cuda:0 to cuda:1 hangs"
    assert "ACS" in result.fix
    (result,) = wrong(tried(peers=GpuCopies(wrong=((0, 1), (1, 0)), tried=2)))
    assert result.message == "what is copied between GPUs arrives changed: cuda:0 → 1, 1 → 0"
    (result,) = wrong(tried(peers=GpuCopies(error="CUDA error: peer access is not supported")))
    assert "peer access is not supported" in result.message


def test_an_iommu_that_translates_is_the_first_to_be_changed() -> None:
    smoke_test = GpuSmokeTest(starts=(), peers=GpuCopies(hangs=(0, 1)))
    (result,) = wrong(with_gpus(gpu_health={"smoke_test": smoke_test, "iommu": "DMA-FQ"}))
    assert result.fix.startswith("boot with iommu=pt")


def test_a_setup_that_fails_leaves_the_trial_unknown() -> None:
    found = said(tried(error="setup line `false` failed with status 1"))
    assert {(name, verdict) for name, verdict, _ in found} == {
        (name, "unknown") for name in ("architecture", "gpu-start", "peer-copies")
    }


def test_a_host_that_told_nothing_of_its_gpus_is_unknown() -> None:
    hosts = [with_answers(one, {GPU_HEALTH: Answer(error="took too long")}) for one in with_gpus().hosts]
    found = said(replace(with_gpus(), hosts=tuple(hosts)))
    assert {verdict for _, verdict, _ in found} == {"unknown"}
    assert {"nvidia-smi", "xids", "gpu-start"} <= {name for name, _, _ in found}


def test_sharing_gpus_on_purpose_is_a_warning() -> None:
    busy = gpus(2, machine="gpu02", busy=(1,))
    bobs = with_gpus(gpus=busy, health={"owners": {4711: PortOwner(user="bob", command="python")}})
    assert said(bobs) == [("busy-gpus", "fail", ("gpu02",))]
    (result,) = wrong(replace(bobs, share_gpus=True))
    assert (result.verdict, result.message) == ("warn", "GPU 1 is busy: bob's python (pid 4711), 4 MiB used")


def test_gpus_with_other_memory_are_named() -> None:
    smaller = tuple(replace(gpu, memory_mib=40960) for gpu in gpus(2, machine="gpu02"))
    (result,) = wrong(with_gpus(gpus=smaller))
    assert (result.name, result.verdict, result.hosts) == ("gpus-equal", "warn", ("gpu02",))
    assert result.message == "GPUs: 2× card with 40960 MiB, 2× card with 81920 MiB on gpu01"


numbers = st.none() | st.integers(0, 1 << 40)
made_cards = st.builds(
    Card,
    number=st.integers(0, 3),
    uuid=st.sampled_from(UUIDS),
    bus=st.text(max_size=5),
    mig=st.booleans(),
    instances=st.integers(0, 2),
    uncorrectable=numbers,
    slowdowns=st.lists(st.sampled_from(["hw_slowdown", "x"]), max_size=2).map(tuple),
    power_watts=numbers,
    width=numbers,
    fabric_state=st.none() | st.text(max_size=5),
)
made_trials = st.builds(
    GpuSmokeTest,
    error=st.none() | st.text(max_size=5),
    starts=st.lists(st.builds(GpuStart, number=st.integers(0, 3), arches=st.just(("sm_80", "gfx9"))), max_size=2).map(
        tuple
    ),
    peers=st.none() | st.builds(GpuCopies, error=st.none() | st.text(max_size=5), hangs=st.none() | st.just((0, 1))),
)


@given(
    health=st.builds(
        GpuHealth,
        reason=st.sampled_from(["", "no NVIDIA GPU there"]),
        cards=st.lists(made_cards, max_size=2).map(tuple),
        error=st.none() | st.just("silent"),
        links=st.dictionaries(st.sampled_from(UUIDS), st.tuples(st.integers(0, 9), st.integers(0, 9))),
        xids=st.lists(st.builds(Xid, bus=st.text(max_size=5)), max_size=2).map(tuple),
        switches=st.integers(0, 2),
        fabric_manager=st.none() | st.just("failed"),
        smoke_test=st.none() | made_trials,
    )
)
def test_no_check_of_gpus_raises_whatever_is_true(health: GpuHealth) -> None:
    told = with_answers(seen("gpu02", *NAMES, devices=2), {GPU_HEALTH: health})
    results = judged(cluster(told), select(only=["GPUs"]))
    for result in results:
        assert result.message
        assert (result.verdict in ("fail", "warn")) == bool(result.fix or result.symptom)


JSON = st.none() | st.booleans() | st.integers() | st.text(max_size=3) | st.lists(st.integers(), max_size=3)


@given(field=st.sampled_from(sorted(gpu_health_json())), value=JSON)
def test_damaged_words_of_gpus_are_the_hosts_error_or_health(field: str, value: Any) -> None:
    with contextlib.suppress(HelperError):  # whatever else is raised fails the test
        assert read_answer(GpuHealth, "gpu01", gpu_health_json(**{field: value}))
