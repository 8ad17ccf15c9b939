"""Counters of the kernel, from its files; of this machine's own at least those of listeners are there."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from clusterddp.remote.probes.kernel_counters import kernel_counters
from clusterddp.remote.shared.probes.network_records import KernelTable

if TYPE_CHECKING:
    from pathlib import Path

ARP = """entries  allocs   destroys hash_grows lookups  hits     res_failed table_fulls
00000400 00000104 00000132 00000003   00000390 000000fd 00000002   0000000a
00000400 0000010c 000000bc 00000000   00000354 000000f6 00000001   00000001
"""
CONNTRACK = """entries  clashres found new invalid ignore delete chainlength insert insert_failed drop early_drop
00000010 00000000 00000000 00000000 00000000 00000000 00000000 00000001 00000000 00000000 00000002 00000000
"""
NETSTAT = """TcpExt: SyncookiesSent ListenOverflows ListenDrops TCPReqQFullDrop
TcpExt: 0 7 90 2
IpExt: InNoRoutes
IpExt: 0
"""


def made(root: Path, **files: str) -> str:
    paths = {
        "arp": "proc/net/stat/arp_cache",
        "arp_limit": "proc/sys/net/ipv4/neigh/default/gc_thresh3",
        "conntrack": "proc/net/stat/nf_conntrack",
        "count": "proc/sys/net/netfilter/nf_conntrack_count",
        "most": "proc/sys/net/netfilter/nf_conntrack_max",
        "netstat": "proc/net/netstat",
    }
    for name, text in files.items():
        path = root / paths[name]
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return str(root)


def test_the_kernels_files_are_read(tmp_path: Path) -> None:
    sizes = {"count": "16\n", "most": "65536\n", "arp_limit": "1024\n"}
    found = kernel_counters(made(tmp_path, arp=ARP, conntrack=CONNTRACK, netstat=NETSTAT, **sizes))
    assert found.listen_overflows == 9
    assert found.tables == {
        "arp": KernelTable(1024, 1024, 11),
        "ndisc": KernelTable(),
        "conntrack": KernelTable(16, 65536, 2),
    }


@pytest.mark.parametrize(
    "text", ["", "\n", "entries\n", "entries\nnonsense\n", "a b\n1\n", "TcpExt: 1\nTcpExt:\n", "-1"]
)
def test_files_of_another_kind_tell_nothing(tmp_path: Path, text: str) -> None:
    names = ("arp", "arp_limit", "conntrack", "count", "most", "netstat")
    found = kernel_counters(made(tmp_path, **dict.fromkeys(names, text)))
    assert found.listen_overflows is None
    assert set(found.tables.values()) == {KernelTable()}


def test_this_kernel_tells_what_its_listeners_had_no_room_for() -> None:
    assert kernel_counters().listen_overflows is not None
