"""Memory and CPU limits of this process's control groups and their ancestors, version 1 and 2."""

import os
from typing import Any, Iterator, List, NamedTuple, Optional, Tuple

from .small_files import text_of

MEMBERSHIP, ROOT = "/proc/self/cgroup", "/sys/fs/cgroup"
_UNLIMITED = 1 << 60  # bytes; version 1 writes "no limit" as a number near this machine's largest


class CgroupLimits(NamedTuple):
    """The tightest limits of this process, each None where there is none."""

    memory_bytes: Optional[int]
    memory_left: Optional[int]
    cpu_thousandths: Optional[int]


def limits(membership: str = MEMBERSHIP, root: str = ROOT) -> CgroupLimits:
    """Read the tightest limits."""
    memory = list(_memory(membership, root))
    return CgroupLimits(
        min((limit for limit, _ in memory), default=None),
        min((left for _, left in memory), default=None),
        min(_cpu_limits(membership, root), default=None),
    )


def memory_limits(membership: str, root: str) -> List[int]:
    """Every memory limit that applies to this process, in bytes."""
    return [limit for limit, _ in _memory(membership, root)]


def _memory(membership: str, root: str) -> Iterator[Tuple[int, int]]:
    """Each memory limit, and the bytes left of it with the page cache counted as free."""
    for folder, is_v1 in _folders("memory", membership, root):
        limit = _number(folder + ("/memory.limit_in_bytes" if is_v1 else "/memory.max"))
        if limit is None or limit >= _UNLIMITED:
            continue
        used = _number(folder + ("/memory.usage_in_bytes" if is_v1 else "/memory.current")) or 0
        rows = map(str.split, text_of(folder + "/memory.stat").splitlines())
        stat = {row[0]: row[1] for row in rows if len(row) == 2}
        prefix = "total_" if is_v1 else ""
        cache = sum(_int_or_zero(stat.get(prefix + name)) for name in ("inactive_file", "active_file"))
        yield limit, max(0, limit - max(0, used - cache))


def _cpu_limits(membership: str, root: str) -> Iterator[int]:
    """Each CPU quota, in thousandths of a core."""
    for folder, is_v1 in _folders("cpu", membership, root):
        if is_v1:
            fields = [text_of(folder + "/cpu.cfs_quota_us").strip(), text_of(folder + "/cpu.cfs_period_us").strip()]
        else:
            fields = text_of(folder + "/cpu.max").split()
        if len(fields) == 2 and fields[0].isdigit() and _int_or_zero(fields[1]):
            yield int(fields[0]) * 1000 // int(fields[1])


def _folders(controller: str, membership: str, root: str) -> Iterator[Tuple[str, bool]]:
    """The folders of our control group and its ancestors under a controller, and whether they are of version 1."""
    for line in text_of(membership).splitlines():
        parts: List[Any] = line.split(":", 2)
        if len(parts) < 3 or (parts[1] and controller not in parts[1].split(",")):
            continue
        base, path = (root + "/" + controller if parts[1] else root), parts[2]
        while True:
            yield base + path.rstrip("/"), bool(parts[1])
            if path in ("", "/"):
                break
            path = os.path.dirname(path)


def _number(path: str) -> Optional[int]:
    text = text_of(path).strip()
    return int(text) if text.isdigit() else None


def _int_or_zero(text: Optional[str]) -> int:
    return int(text) if text and text.isdigit() else 0
