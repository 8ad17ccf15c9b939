"""Large packets are said to be lost only where they are lost each time, and small ones never."""

from __future__ import annotations

import threading
from collections import deque
from typing import TYPE_CHECKING, Any

import pytest

from clusterddp.hosts import large_packets
from clusterddp.hosts.large_packets import largest_passing_size
from clusterddp.inventory import HostEntry

if TYPE_CHECKING:
    from collections.abc import Callable

GPU = HostEntry(name="gpu01", address="127.0.0.1")


class Echo:
    """A pipe that sends back each message but those of the sizes that it loses."""

    def __init__(self, is_lost: Callable[[int], bool]) -> None:
        self._is_lost = is_lost
        self._came: deque[bytes] = deque()
        self._stirred = threading.Event()

    def write(self, data: bytes) -> None:
        if not self._is_lost(len(data) - 1):
            self._came.append(data)
            self._stirred.set()

    def read(self, _size: int) -> bytes:
        self._stirred.wait(60)
        self._stirred.clear()
        return self._came.popleft() if self._came else b""

    def close(self) -> None:
        self._stirred.set()


class Opener:
    """Opens one pipe after the other, each of which loses its own sizes."""

    def __init__(self, *lost: Callable[[int], bool]) -> None:
        self.left = list(lost)

    def open(self, _entry: HostEntry, _command: str) -> Any:
        return Echo(self.left.pop(0))


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(large_packets, "MESSAGE_TIMEOUT", 0.3)
    monkeypatch.setattr(large_packets, "FIRST_TIMEOUT", 0.3)


def too_large(size: int) -> bool:
    return size > 1400


def never(_size: int) -> bool:
    return False


def test_what_is_lost_on_two_connections_is_told() -> None:
    opener = Opener(too_large, too_large)
    assert largest_passing_size(GPU, opener) == (1400, 2000)
    assert opener.left == []


@pytest.mark.parametrize("first", range(400, 2001, 200))
def test_a_message_that_is_lost_by_chance_is_no_fault_of_its_size(first: int) -> None:
    assert largest_passing_size(GPU, Opener(lambda size: size >= first, never)) is None


def test_small_messages_that_are_lost_too_are_no_fault_of_the_size() -> None:
    came = iter([False, True])
    assert largest_passing_size(GPU, Opener(too_large, lambda _size: next(came))) is None


def test_a_path_that_loses_the_smallest_message_is_not_said_to_lose_large_ones() -> None:
    opener = Opener(lambda _size: True)
    assert largest_passing_size(GPU, opener) is None
    assert opener.left == []
