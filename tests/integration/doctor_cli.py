"""The doctor's command as a user gives it, what it finds wrong, and faults of lab hosts that it has to find."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager

    from tests.integration.cli import Done, User
    from tests.lab import Lab
    from tests.lab.host import LabHost

Named = tuple[str, str, tuple[str, ...], str]  # check, verdict, hosts, words of its message
SICK = "gpu01"


def named(user: User, *words: str) -> tuple[int, list[Named]]:
    """The exit code, and what is wrong; each with a symptom and a remedy, unless it is unknown."""
    return named_in(user.run("doctor", "--json", *words))


def named_in(done: Done) -> tuple[int, list[Named]]:
    """The same of a command that has ended."""
    found = [one for one in done.json["checks"] if one["verdict"] not in ("pass", "skipped")]
    for one in found:
        assert one["verdict"] == "unknown" or (one["symptom"] and one["fix"]), one
    return done.code, [(one["name"], one["verdict"], tuple(one["hosts"]), one["message"]) for one in found]


@dataclass(frozen=True, kw_only=True)
class Fault:
    """A fault of a lab host.

    Attributes:
        inject: A context manager that causes the fault on a host and removes it at the end.
        only: The checks to run, as for `doctor --only`.
        said: What they report of the host: check, verdict, words of the message.
        host: The host that has the fault.
    """

    inject: Callable[[LabHost], AbstractContextManager[None]]
    only: str
    said: tuple[tuple[str, str, str], ...]
    host: str = SICK

    @property
    def named(self) -> list[Named]:
        """The findings that `doctor` prints for this fault: check, verdict, hosts, words of the message."""
        return [(check, verdict, (self.host,), words) for check, verdict, words in self.said]


def assert_said(told: tuple[int, list[Named]], *said: Named) -> None:
    """Assert that `doctor` printed exactly these findings, in this order, and exited with 1 if one of them failed."""
    code, found = told
    assert [one[:3] for one in found] == [one[:3] for one in said], found
    for (*_, message), (*_, words) in zip(found, said, strict=True):
        assert words in message
    assert code == int(any(verdict == "fail" for _, verdict, *_ in said))


def assert_fault(lab: Lab, user: User, *faults: Fault) -> None:
    """Inject all faults, given in the order of their checks; assert that `doctor` reports exactly these."""
    with contextlib.ExitStack() as stack:
        for fault in faults:
            stack.enter_context(fault.inject(lab.host(fault.host)))
        told = named(user, "--only", _checks(*faults))
    assert_said(told, *(one for fault in faults for one in fault.named))


def assert_mended(user: User, *faults: Fault) -> None:
    """Assert that the checks of these faults, which have been removed, report nothing."""
    assert named(user, "--only", _checks(*faults)) == (0, [])


def _checks(*faults: Fault) -> str:
    return ",".join({fault.only: None for fault in faults})
