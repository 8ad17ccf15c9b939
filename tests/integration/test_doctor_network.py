"""The doctor's sight of the network on real hosts: what happens to packets, and what a job by hand would choose.

Ways that are shut, names and ports: test_doctor.py. Judgements over made facts: tests/unit/test_checks_paths.py.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pytest

from tests.integration.cli import User
from tests.integration.test_doctor import assert_said, named
from tests.lab import Lab, LabUnavailable
from tests.lab.system import command

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from contextlib import AbstractContextManager

pytestmark = pytest.mark.lab
SICK = "gpu01"
WAYS = f"gpu00 → {SICK}, {SICK} → gpu00, {SICK} → gpu02, gpu02 → {SICK}"


@pytest.fixture(scope="module")
def three() -> Iterator[Lab]:
    """Three hosts of our own, broken and healed again by every test."""
    try:
        lab = Lab(3).start()
    except LabUnavailable as reason:
        pytest.skip(f"lab: {reason}")
    try:
        yield lab
    finally:
        lab.stop()


@pytest.fixture(scope="module")
def user(three: Lab, tmp_path_factory: pytest.TempPathFactory) -> User:
    made = User(tmp_path_factory.mktemp("user"))
    made.up(three.inventory)
    return made


@contextlib.contextmanager
def black_hole(lab: Lab) -> Iterator[None]:
    """Not on the operator's way, or the host would not even be reached."""
    for other in lab.hosts:
        if other.name != SICK:
            lab.host(SICK).black_hole(peer=other.address)
    yield
    lab.host(SICK).heal()


@contextlib.contextmanager
def jumbo_frames(lab: Lab) -> Iterator[None]:
    """A larger MTU on one host: TCP agrees on the smaller of both, nothing vanishes."""
    host = lab.host(SICK)
    command("ip", "-n", host.namespace, "link", "set", "eth0", "mtu", "9000")
    yield
    command("ip", "-n", host.namespace, "link", "set", "eth0", "mtu", "1500")


@contextlib.contextmanager
def loss(lab: Lab) -> Iterator[None]:
    lab.host(SICK).lose(0.1)
    yield
    lab.host(SICK).heal()


@contextlib.contextmanager
def dead_second_address(lab: Lab) -> Iterator[None]:
    host = lab.host(SICK)
    kept = host.read("/etc/hosts")
    host.write("/etc/hosts", f"{kept}fd00::dead gpu00\n", user="root")
    yield
    host.write("/etc/hosts", kept, user="root")


@dataclass(frozen=True, kw_only=True)
class Fault:
    """How it is put in, which checks are asked, and what they say of the sick host (message: words in it)."""

    inject: Callable[[Lab], AbstractContextManager[None]]
    said: tuple[tuple[str, str, str], ...]
    only: str = "Network"


FAULTS = [
    Fault(inject=black_hole, said=(("black-hole", "fail", "small packets pass, large ones vanish"),)),
    Fault(inject=jumbo_frames, said=(("mtu-equal", "warn", "eth0 has an MTU of 9000, most have 1500"),)),
    Fault(inject=loss, said=(("loss", "warn", "TCP segments to and from gpu00, gpu02 had to be sent again"),)),
    Fault(
        inject=dead_second_address,
        said=(("name-addresses", "warn", "gpu00 → fd00::dead (on none of its cards)"),),
    ),
]


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.inject.__name__)
def test_a_fault_is_named_with_its_host_and_gone_when_it_is(three: Lab, user: User, fault: Fault) -> None:
    assert named(user, "--only", fault.only) == (0, [])
    with fault.inject(three):
        code, found = named(user, "--only", fault.only)
    assert_said(found, fault.said)
    assert code == int(any(verdict == "fail" for _, verdict, _ in fault.said))
    assert named(user, "--only", fault.only) == (0, [])


def test_every_two_hosts_are_told(three: Lab, user: User) -> None:
    names = [host.name for host in three.hosts]
    with black_hole(three):
        pairs = user.run("doctor", "--json", "--only", "network").json["pairs"]
    assert [(one["source"], one["target"]) for one in pairs] == [(a, b) for a in names for b in names if a != b]
    for one in pairs:
        sick = SICK in (one["source"], one["target"])
        assert (one["verdict"], one["word"], one["bulk"]) == (
            ("fail", "black hole", False) if sick else ("pass", "ok", True)
        )
        assert one["rtt_ms"] < 1000
