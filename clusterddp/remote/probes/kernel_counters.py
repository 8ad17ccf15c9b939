"""What the kernel says of packets that it dropped itself: queues of listeners, tables of neighbours and connections."""

from typing import Dict, List, Optional

from ..shared.probes.network_records import KernelCounters, KernelTable

# Tables by name: the file of their use, the column of what found no room, and the sysctl of their size.
_NEIGHBOURS = {
    "arp": ("/proc/net/stat/arp_cache", "/proc/sys/net/ipv4/neigh/default/gc_thresh3"),
    "ndisc": ("/proc/net/stat/ndisc_cache", "/proc/sys/net/ipv6/neigh/default/gc_thresh3"),
}
_CONNTRACK = "/proc/net/stat/nf_conntrack"
_CONNTRACK_SYSCTLS = "/proc/sys/net/netfilter/nf_conntrack_"


def kernel_counters(root: str = "") -> KernelCounters:
    """The kernel's counters; None for what it does not show here. ``root`` stands before the files' paths."""
    tables = {}
    for name, (statistics, limit) in _NEIGHBOURS.items():
        columns = _per_cpu(root + statistics)
        entries = columns.get("entries")  # the same on every CPU's line
        refused = sum(columns["table_fulls"]) if "table_fulls" in columns else None
        tables[name] = KernelTable(entries[0] if entries else None, _number(root + limit), refused)
    dropped = _per_cpu(root + _CONNTRACK).get("drop")
    sizes = [_number(root + _CONNTRACK_SYSCTLS + name) for name in ("count", "max")]
    tables["conntrack"] = KernelTable(sizes[0], sizes[1], None if dropped is None else sum(dropped))
    return KernelCounters(listen_overflows=_listen_overflows(root + "/proc/net/netstat"), tables=tables)


def _per_cpu(path: str) -> Dict[str, List[int]]:
    """A file of /proc/net/stat: a line of names, then a line of hexadecimal numbers for each CPU."""
    lines = [line.split() for line in _lines(path)]
    try:
        rows = [[int(word, 16) for word in line] for line in lines[1:]]
    except ValueError:
        return {}
    names = lines[0] if lines and rows and all(len(row) == len(lines[0]) for row in rows) else []
    return {name: [row[index] for row in rows] for index, name in enumerate(names)}


def _listen_overflows(path: str) -> Optional[int]:
    """How many connections listeners of this host had no room for, in either of a listener's queues."""
    lines = [line.split() for line in _lines(path) if line.startswith("TcpExt:")]
    if len(lines) != 2 or len(lines[0]) != len(lines[1]):
        return None
    counters = dict(zip(*lines))
    # Not ListenDrops, which counts a handshake too that a firewall on the other side has rejected.
    words = [counters[name] for name in ("ListenOverflows", "TCPReqQFullDrop") if name in counters]
    return sum(map(int, words)) if words and all(map(str.isdecimal, words)) else None


def _number(path: str) -> Optional[int]:
    text = "".join(_lines(path)).strip()
    return int(text) if text.isdecimal() and len(text) < 19 else None


def _lines(path: str) -> List[str]:
    try:
        with open(path, encoding="ascii", errors="replace") as file:
            return file.readlines()
    except OSError:
        return []
