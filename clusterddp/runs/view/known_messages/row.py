"""The record type of one known message."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True, slots=True)
class KnownMessage:
    """One message: how it is recognised, what it means, what helps, and the doctor's check for it, if any."""

    name: str
    pattern: str
    cause: str
    remedy: str
    check: str = ""
    of_peer: bool = False  # it says that another rank ended

    def __str__(self) -> str:
        return f"{self.cause}: {self.remedy}"
