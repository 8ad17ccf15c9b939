"""InfiniBand and RoCE ports from a made sysfs tree, and what the doctor says of them over made facts.

Made after the kernel's Documentation/ABI/stable/sysfs-class-infiniband; no adapter was there to record.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from clusterddp.remote.probes.infiniband import ports
from clusterddp.remote.shared.probes.health_records import Hca, Health
from tests.unit.evidence_made import cluster, health, seen, wrong

if TYPE_CHECKING:
    from pathlib import Path

    from clusterddp.checks.evidence import Evidence

NAMES = ("gpu01", "gpu02", "gpu03")
EMPTY = "0000:0000:0000:0000:0000:0000:0000:0000"
LOCAL = "fe80:0000:0000:0000:0015:5dff:fe33:0001"
MAPPED = "0000:0000:0000:0000:0000:ffff:0a00:0001"


def tree(root: Path, device: str, *, layer: str, state: str, rate: str, gids: dict[int, tuple[str, str]]) -> None:
    """One port as the kernel shows it; the type of a GID that is not in use cannot be read, here it is not there."""
    folder = root / device / "ports" / "1"
    (folder / "gids").mkdir(parents=True)
    (folder / "gid_attrs" / "types").mkdir(parents=True)
    for name, text in (("state", state), ("rate", rate), ("link_layer", layer)):
        (folder / name).write_text(text + "\n")
    for index in range(4):
        gid, kind = gids.get(index, (EMPTY, ""))
        (folder / "gids" / str(index)).write_text(gid + "\n")
        if kind:
            (folder / "gid_attrs" / "types" / str(index)).write_text(kind + "\n")


def test_ports_are_read_as_the_kernel_shows_them(tmp_path: Path) -> None:
    gids = {0: (LOCAL, "IB/RoCE v1"), 1: (LOCAL, "RoCE v2"), 2: (MAPPED, "IB/RoCE v1"), 3: (MAPPED, "RoCE v2")}
    tree(tmp_path, "mlx5_1", layer="Ethernet", state="4: ACTIVE", rate="100 Gb/sec (4X EDR)", gids=gids)
    tree(tmp_path, "mlx5_0", layer="InfiniBand", state="2: INIT", rate="2.5 Gb/sec (1X SDR)", gids={0: (LOCAL, "IB")})
    infiniband, roce = ports(str(tmp_path))
    assert infiniband == Hca(
        device="mlx5_0", port=1, state="INIT", rate_gbit=2, link_layer="InfiniBand", gids=1, roce_index=None
    )
    assert (roce.device, roce.rate_gbit, roce.gids, roce.roce_index) == ("mlx5_1", 100, 4, 3)


def test_a_host_without_adapters_has_no_ports(tmp_path: Path) -> None:
    assert ports(str(tmp_path / "none")) == []


def hca(device: str = "mlx5_0", **fields: Any) -> Hca:
    own = {"state": "ACTIVE", "rate_gbit": 400, "link_layer": "InfiniBand", "gids": 2, "roce_index": None, **fields}
    return Hca(device=device, port=1, **own)


def hosts(*sick: Hca) -> Evidence:
    """Three hosts with two ports each, the second of them as told."""
    well = (hca(), hca("mlx5_1"))
    return cluster(*(seen(name, *NAMES, health={"hcas": sick if name == "gpu02" else well}) for name in NAMES))


def said(*sick: Hca) -> list[tuple[str, tuple[str, ...], str]]:
    return [(one.name, one.hosts, one.message) for one in wrong(hosts(*sick))]


def test_equal_ports_pass() -> None:
    assert said(hca(), hca("mlx5_1")) == []


def test_a_port_that_is_down_here_and_active_elsewhere_is_named() -> None:
    assert said(hca(), hca("mlx5_1", state="DOWN")) == [("hca-active", ("gpu02",), "mlx5_1:1 is DOWN (no link)")]


def test_a_port_that_nobody_uses_is_no_fault() -> None:
    everywhere: dict[str, Any] = {"health": {"hcas": (hca(), hca("mlx5_1", state="DOWN"))}}
    assert wrong(cluster(*(seen(name, *NAMES, **everywhere) for name in NAMES))) == []


def test_a_port_without_subnet_manager_is_named() -> None:
    ((name, names, message),) = said(hca(), hca("mlx5_1", state="INIT"))
    assert (name, names, message) == ("hca-active", ("gpu02",), "mlx5_1:1 is INIT (no subnet manager has set it up)")


def test_an_adapter_that_is_missing_is_told_once() -> None:
    assert said(hca()) == [("hca-equal", ("gpu02",), "has the ports mlx5_0:1, most have mlx5_0:1 mlx5_1:1")]


def test_a_port_at_another_rate_is_named() -> None:
    ((name, names, message),) = said(hca(), hca("mlx5_1", rate_gbit=100))
    assert (name, names) == ("hca-equal", ("gpu02",))
    assert message == "mlx5_1:1 has InfiniBand at 100 Gbit/s, most have InfiniBand at 400 Gbit/s"


def test_another_gid_index_for_roce_is_named() -> None:
    def roce(index: int) -> tuple[Hca, ...]:
        return (hca(link_layer="Ethernet", roce_index=index),)

    made = cluster(*(seen(name, *NAMES, health={"hcas": roce(5 if name == "gpu02" else 3)}) for name in NAMES))
    (result,) = wrong(made)
    assert (result.name, result.hosts) == ("hca-equal", ("gpu02",))
    assert result.message == "mlx5_0:1 has GID index 5, most have GID index 3"


def test_what_a_host_tells_becomes_a_value() -> None:
    assert isinstance(health().hcas, tuple)
    assert "hcas" in Health._fields
