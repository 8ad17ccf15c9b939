"""What nvidia-smi and the kernel log print of GPUs, taken apart: texts that are made, and some of a real H100."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from clusterddp.facts.read_facts import read_answer
from clusterddp.remote.probes import nvidia_smi_xml, xids
from clusterddp.remote.shared.probes.gpu_records import Card, GpuHealth
from clusterddp.remote.shared.schema.record import to_fields
from clusterddp.remote.system import nvidia_smi
from tests.unit.facts_made import gpu_health_json

DATA = Path(__file__).parents[3] / "data" / "nvidia-smi"
H100 = (DATA / "two-h100-550.54.15.xml").read_text()
TWO = "GPU-33333333-aaaa-bbbb-cccc-00000000000{}"


def test_healthy_gpus_are_read_whole() -> None:
    first, second = nvidia_smi_xml.parse_cards(H100)
    assert first == Card(
        number=0,
        uuid=TWO.format(0),
        bus="00000000:18:00.0",
        mig=False,
        instances=0,
        uncorrectable=0,
        repair_pending=False,
        repair_failed=False,
        recovery=None,
        slowdowns=(),
        celsius=31,
        power_watts=700,
        default_watts=700,
        width=16,
        most_width=16,
        fabric_state="Completed",
        fabric_status="Success",
    )
    assert (second.number, second.uuid) == (1, TWO.format(1))
    assert (
        read_answer(GpuHealth, "gpu01", gpu_health_json(cards=[to_fields(first), to_fields(second)])).cards[1].bus
        == "00000000:2A:00.0"
    )


def test_an_old_driver_calls_things_otherwise() -> None:
    (card,) = nvidia_smi_xml.parse_cards((DATA / "v100-470.82.01.xml").read_text())
    assert (card.uncorrectable, card.repair_pending, card.repair_failed) == (2, True, False)
    assert card.slowdowns == ("hw_slowdown", "hw_thermal_slowdown")
    assert (card.power_watts, card.default_watts, card.celsius) == (250, 300, 88)
    assert (card.width, card.most_width) == (8, 16)
    assert (card.fabric_state, card.recovery) == (None, None)


def test_a_new_driver_tells_more() -> None:
    (card,) = nvidia_smi_xml.parse_cards((DATA / "rtx6000-590.44.01.xml").read_text())
    assert (card.uncorrectable, card.repair_pending, card.repair_failed) == (None, True, True)
    assert card.recovery == "Reset"
    assert (card.mig, card.instances) == (True, 2)
    assert (card.width, card.most_width, card.power_watts) == (None, None, None)


@pytest.mark.parametrize("element", sorted(set(re.findall(r"<([a-z_]+)>", H100)) - {"nvidia_smi_log"}))
def test_a_driver_that_does_not_know_an_element_tells_all_the_others(element: str) -> None:
    text = re.sub(rf"<{element}>.*?</{element}>", "", H100, flags=re.DOTALL)
    cards = nvidia_smi_xml.parse_cards(text)
    healthy = nvidia_smi_xml.parse_cards(H100)[0]
    assert len(cards) == 2
    # What an element holds may be a whole group, of which no single one is the others'.
    changed = {name for name in Card._fields if getattr(cards[0], name) != getattr(healthy, name)}
    assert len(changed) <= 2, changed
    read_answer(GpuHealth, "gpu01", gpu_health_json(cards=[to_fields(card) for card in cards]))


@pytest.mark.parametrize("text", ["", "NVIDIA-SMI has failed because it couldn't communicate", H100[: len(H100) // 2]])
def test_text_that_is_no_answer_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="prints no XML"):
        nvidia_smi_xml.parse_cards(text)


def test_links_that_are_up_are_counted() -> None:
    links = nvidia_smi_xml.parse_links((DATA / "two-h100-550.54.15.nvlink.txt").read_text())
    assert links == {TWO.format(0): (18, 18), TWO.format(1): (18, 18)}
    others = nvidia_smi_xml.parse_links((DATA / "no-nvlink-535.54.03.txt").read_text())
    assert others == {
        "GPU-66666666-aaaa-bbbb-cccc-000000000001": (0, 0),  # all are down, and none is listed
        "GPU-66666666-aaaa-bbbb-cccc-000000000002": (2, 3),
    }
    assert nvidia_smi_xml.parse_links("NVIDIA-SMI has failed\n") == {}


def test_xids_are_counted_by_gpu_and_number() -> None:
    lines = [line.split(" ", 1) for line in (DATA / "xids-550.54.15.journal").read_text().splitlines()]
    found = xids.collect([(float(when), text) for when, text in lines], 1700000500.0)
    assert [(one.bus, one.xid, one.times, one.seconds_ago) for one in found] == [
        ("0000:18:00", 31, 1, 499),
        ("0000:2a:00", 48, 2, 299),
        ("0000:2a:00", 154, 1, 100),
    ]
    assert found[2].text.endswith("(GPU Reset Required)")
    assert read_answer(GpuHealth, "gpu01", gpu_health_json(xids=[to_fields(one) for one in found])).xids[1].times == 2


def test_xids_of_old_drivers_are_read_too() -> None:
    (found,) = xids.collect([(5.0, "NVRM: Xid (0000:03:00): 14, Channel 00000001")], 4.0)
    assert (found.bus, found.xid, found.seconds_ago) == ("0000:03:00", 14, 0)


def test_a_log_full_of_kinds_of_xids_stays_small() -> None:
    lines = [(0.0, f"NVRM: Xid (PCI:0000:03:00): {number}, x") for number in range(5000)]
    assert len(xids.collect(lines * 2, 0.0)) == xids.MAX_KINDS


def program(folder: Path, text: str) -> None:
    path = folder / "journalctl"
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o700)


@pytest.mark.parametrize(
    ("script", "count", "error"),
    [
        (f'case "$*" in *--grep*) cat {DATA / "xids-550.54.15.journal"};; *) echo booting;; esac', 3, False),
        ('case "$*" in *--grep*) exit 1;; *) echo booting;; esac', 0, False),
        ("echo 'No journal files were opened due to insufficient permissions.' >&2; exit 1", 0, True),
        ("exit 1", 0, True),
        (
            'case "$*" in *--grep*) echo "Compiled without pattern matching support" >&2; exit 1;; *) echo x;; esac',
            0,
            True,
        ),
    ],
    ids=["found", "none", "denied", "own messages only", "no search"],
)
def test_a_journal_that_may_not_be_read_is_said_to_be_so(
    script: str, count: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, error: bool
) -> None:
    program(tmp_path, script)
    monkeypatch.setattr(xids, "read_ring", lambda: None)
    told = xids.KernelLog({"PATH": f"{tmp_path}:/usr/bin:/bin"}).xids()
    assert len(told.xids) == count
    assert bool(told.error) == error


def test_without_a_journal_the_ring_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    line = "NVRM: Xid (PCI:0000:07:00): 79, pid=7, GPU has fallen off the bus."
    monkeypatch.setattr(xids, "read_ring", lambda: [(0.0, line)])
    told = xids.KernelLog({"PATH": str(tmp_path)}).xids()
    assert [one.xid for one in told.xids] == [79]
    assert told.error is None


RECORDED = DATA / "recorded" / "1-nvidia-h100-80gb-hbm3-580.159.04"  # while one process computed


def test_what_a_real_h100_says_is_read_whole() -> None:
    (card,) = nvidia_smi_xml.parse_cards(Path(f"{RECORDED}.xml").read_text())
    assert card.uuid == "GPU-00000000-b010-9f4c-37aa-f08af2a2c201"
    assert (card.number, card.bus, card.mig, card.uncorrectable, card.width, card.most_width) == (
        0, "00000000:00:06.0", False, 0, 16, 16,
    )  # fmt: skip
    assert (card.power_watts, card.repair_pending, card.slowdowns) == (700, False, ())
    (usage,) = nvidia_smi_xml.parse_usage(Path(f"{RECORDED}.xml").read_text())
    assert [process.pid for process in usage.processes] == [29344]


def test_a_real_h100_is_listed_with_who_computes_on_it() -> None:
    (listed,) = nvidia_smi.parse_gpus(Path(f"{RECORDED}.csv").read_text())
    assert (listed.name, listed.memory_mib, listed.driver) == ("NVIDIA H100 80GB HBM3", 81559, "580.159.04")
    assert nvidia_smi.parse_apps(Path(f"{RECORDED}.apps.csv").read_text()) == {listed.uuid: [29344]}
    assert nvidia_smi_xml.parse_links(Path(f"{RECORDED}.nvlink.txt").read_text()) == {}


IDLE = DATA / "recorded" / "1-nvidia-h200-580.159.04"  # while nothing computed


def test_on_a_real_h200_at_rest_nobody_is_found() -> None:
    (card,) = nvidia_smi_xml.parse_cards(Path(f"{IDLE}.xml").read_text())
    (usage,) = nvidia_smi_xml.parse_usage(Path(f"{IDLE}.xml").read_text())
    (listed,) = nvidia_smi.parse_gpus(Path(f"{IDLE}.csv").read_text())
    assert (listed.name, listed.memory_mib, listed.uuid) == ("NVIDIA H200", 143771, card.uuid)
    assert (usage.processes, nvidia_smi.parse_apps(Path(f"{IDLE}.apps.csv").read_text())) == ((), {})
    assert card.slowdowns == ()


def test_the_xid_of_a_real_device_side_assert_is_read() -> None:
    line = Path(f"{RECORDED}.dmesg").read_text().partition("] ")[2]
    (found,) = xids.collect([(100.0, line)], 160.0)
    assert (found.xid, found.bus, found.times, found.seconds_ago) == (43, "0000:00:06", 1, 60)
