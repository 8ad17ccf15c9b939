"""The names and addresses of simulated hosts, and what may be wrong with one."""

from __future__ import annotations

from typing import NamedTuple

FIRST_ADDRESS = (10 << 24) + 256  # 10.0.1.0


class Fault(NamedTuple):
    """What is wrong with a host, in every request for ``operation`` (empty: in all)."""

    operation: str = ""
    delay: float = 0.0  # seconds before it answers
    silent: bool = False  # from the first such request on it says nothing more, not even to pings
    dies: bool = False  # its connection ends in the middle of the answer

    def concerns(self, operation: str) -> bool:
        """Whether a request meets the fault."""
        return self.operation in ("", operation)


NO_FAULT = Fault()


def name_of(number: int) -> str:
    """The name of the host with this number."""
    return f"sim{number:04d}"


def number_of(name: str) -> int:
    """The number of the host with this name."""
    return int(name.removeprefix("sim"))


def address_of(number: int) -> str:
    """The address of the host with this number, in 10.0.0.0/8."""
    value = FIRST_ADDRESS + number
    return ".".join(str(value >> shift & 255) for shift in (24, 16, 8, 0))
