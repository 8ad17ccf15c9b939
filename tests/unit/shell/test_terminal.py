"""The keys that leave a shell, the size of its window, and how ports are written."""

from __future__ import annotations

import queue
import signal
import threading
from typing import TYPE_CHECKING, Any

import pytest

from clusterddp.errors import UsageError
from clusterddp.hosts.outgoing import Outgoing
from clusterddp.shell.forward import ForwardSpec, forward_spec
from clusterddp.shell.terminal import Escape, report_window_size

if TYPE_CHECKING:
    from collections.abc import Mapping


@pytest.mark.parametrize(
    ("pieces", "sent", "left"),
    [
        ([b"ls\r"], b"ls\r", False),
        ([b"~."], b"", True),
        ([b"a\r~", b".never"], b"a\r", True),
        ([b"cd ~.\r"], b"cd ~.\r", False),
        ([b"~~.\r"], b"~.\r", False),
        ([b"~/x\r", b"~q"], b"~/x\r~q", False),
    ],
)
def test_only_a_tilde_and_a_dot_at_the_beginning_of_a_line_hang_up(
    pieces: list[bytes], sent: bytes, *, left: bool
) -> None:
    escape = Escape()
    taken = [escape.take(piece) for piece in pieces]
    assert (b"".join(keys for keys, _ in taken), taken[-1][1]) == (sent, left)


def test_the_end_of_the_input_is_a_ctrl_d_or_two_within_a_line() -> None:
    escape = Escape()
    assert escape.end_of_input == b"\x04"
    escape.take(b"ls")
    assert escape.end_of_input == b"\x04\x04"
    escape.take(b"\n")
    assert escape.end_of_input == b"\x04"


def test_a_resize_does_not_wait_for_the_lock_that_the_interrupted_thread_holds() -> None:
    lock, sent, outgoing = threading.Lock(), queue.Queue[object](), Outgoing()

    def write(header: Mapping[str, Any], _body: bytes) -> None:
        if lock.acquire(timeout=2):
            lock.release()
            sent.put(sorted(header))

    outgoing.attach(write)
    with report_window_size(outgoing):
        with lock:
            signal.raise_signal(signal.SIGWINCH)
        assert sent.get(timeout=2) == ["columns", "kind", "rows"]


def test_a_port_is_a_ranks_a_hosts_or_the_first_nodes() -> None:
    assert forward_spec("6006") == ForwardSpec(port=6006)
    assert forward_spec("3:6006") == ForwardSpec(port=6006, rank=3)
    assert forward_spec("gpu01:6006") == ForwardSpec(port=6006, host="gpu01")
    assert forward_spec("[::1]:80") == ForwardSpec(port=80, host="::1")


@pytest.mark.parametrize("text", ["", "gpu01", "gpu01:", "0:0", "65536", "-1", "٣", "1" * 5000])
def test_what_is_no_port_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match=r"is no port; write 6006, 0:6006 \(rank 0's\) or gpu01:6006"):
        forward_spec(text)
