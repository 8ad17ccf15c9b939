"""This host's InfiniBand and RoCE ports, as the kernel shows them in sysfs, without any vendor's tool."""

import os
from typing import List, Optional

from ..shared.probes.health_records import Hca
from ..system.small_files import sorted_names, text_of

ROOT = "/sys/class/infiniband"
MAX_GIDS = 256
_ZERO_CHARACTERS = set("0:")  # an unused entry of the GID table is all zeros
_IPV4_PREFIX = "0000:0000:0000:0000:0000:ffff:"  # an IPv4 address as a GID


def ports(root: str = ROOT) -> List[Hca]:
    """Every port of every adapter."""
    found = []
    for device in sorted_names(root):
        folder = os.path.join(root, device, "ports")
        found += [_port(device, name, os.path.join(folder, name)) for name in sorted_names(folder) if name.isdigit()]
    return found


def _port(device: str, number: str, folder: str) -> Hca:
    entries = {index: _text(folder, "gids", str(index)) for index in range(MAX_GIDS)}
    gids = {index: gid for index, gid in entries.items() if set(gid) - _ZERO_CHARACTERS}
    return Hca(
        device=device,
        port=int(number),
        state=_text(folder, "state").partition(": ")[2],
        rate_gbit=_rate(_text(folder, "rate")),
        link_layer=_text(folder, "link_layer"),
        gids=len(gids),
        roce_index=next((index for index, gid in gids.items() if _is_roce(folder, index, gid)), None),
    )


def _is_roce(folder: str, index: int, gid: str) -> bool:
    return gid.startswith(_IPV4_PREFIX) and _text(folder, "gid_attrs", "types", str(index)) == "RoCE v2"


def _rate(text: str) -> Optional[int]:
    """Gbit/s from a text such as ``200 Gb/sec (4X HDR)``; None if it begins with no number."""
    try:
        return int(float(text.split(maxsplit=1)[0]))
    except (IndexError, ValueError):
        return None


def _text(*parts: str) -> str:
    return text_of(os.path.join(*parts), 200).strip()
