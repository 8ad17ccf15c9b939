"""How a discovery ended, and how ranks are listed in messages."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

UDP_PORT = 29400
START_IT = f"start it with the same --id on this network segment, and let UDP port {UDP_PORT} through firewalls"
START_THEM = START_IT.replace(" it ", " them ", 1)


@dataclass(frozen=True, kw_only=True, slots=True)
class Met:
    """All machines were found: rank 0's address and MASTER_PORT."""

    address: str
    port: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Failed:
    """The discovery failed: what happened, and what to do."""

    message: str
    remedy: str = ""


def ranks(listed: Sequence[int], count: int = 0) -> str:
    """Return ranks as text: ``rank 2``; ``ranks 2, 5``; ``ranks 1, 2 and 98 more`` with a larger ``count``."""
    more = max(0, count - len(listed))
    text = ", ".join(str(rank) for rank in listed) + (f" and {more} more" if more else "")
    return f"rank {text}" if len(listed) + more == 1 else f"ranks {text}"


def seconds(value: float) -> str:
    """Return seconds as text: ``60 s``, ``0.5 s``."""
    return f"{value:g} s"
