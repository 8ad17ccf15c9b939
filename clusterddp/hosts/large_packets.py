"""Find out whether large packets get lost on the way to a host: small messages come back, larger ones do not.

A path with a smaller MTU than its ends assume passes the login, but drops the helper's code. Checked only when the
helper did not start: a second connection runs ``cat``, and messages of growing size are sent. As a message may also be
late by chance, where packets get lost at random, a third connection must show the same. Needs no root.
"""

from __future__ import annotations

import contextlib
import secrets
import threading
from typing import TYPE_CHECKING

from clusterddp.errors import ClusterddpError, UnreachableError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from clusterddp.hosts.ssh import BytePipe
    from clusterddp.hosts.start_limit import StartLimit
    from clusterddp.hosts.via_job_step import Opener
    from clusterddp.inventory import HostEntry

COMMAND = "exec cat"
# Bytes; ssh, TCP and IP add about 100. The first fits in 576, which every IPv4 path must pass.
SIZES = (400, 1000, 1200, 1300, 1350, 1400, 2000, 4000, 8000, 16000)
CONFIRMATIONS = 3  # times that the largest size must come back on the third connection, before the next is lost again
FIRST_TIMEOUT = 15.0  # seconds for the first message to come back, as a login shell may read long files before
MESSAGE_TIMEOUT = 5.0  # seconds for each other message; enough for two packets lost by chance to be sent again
_MAX_NOISE = 64 * 1024  # bytes a login shell may print


def timeout_error(entry: HostEntry, opener: Opener, limit: StartLimit) -> UnreachableError:
    """Build the error for a helper that did not start in time; it says so if large packets get lost."""
    late = f"the helper did not start within {limit.seconds:.0f} s"
    lost = largest_passing_size(entry, opener, limit.slowness)
    if lost is None:
        cause = limit.cause
        remedy = "try again, with fewer hosts at once if that does not help" if cause else ""
        return UnreachableError(entry.name, f"{late}: {cause}" if cause else late, remedy=remedy)
    passed, failed = lost
    return UnreachableError(
        entry.name,
        f"{late}: large packets are lost on the way: {passed} bytes come back, {failed} do not",
        remedy=f"compare the MTU of the cards on both ends (`ip link`) with what passes (`ping -M do -s {failed}"
        f" {entry.address}`); lower it (`ip link set dev CARD mtu {passed}`), or mend what is between them",
    )


def largest_passing_size(entry: HostEntry, opener: Opener, slowness: float = 1.0) -> tuple[int, int] | None:
    """Return the largest size in bytes that came back and the next, which did not; None if that is not the fault.

    Takes the time of two connections, and ``MESSAGE_TIMEOUT`` for each lost message or ``FIRST_TIMEOUT`` for a silent
    host, both ``slowness`` times as long: what is only late is not lost.
    """
    found = _first_loss(entry, opener, SIZES, slowness)
    if found is None:
        return None
    passed, failed = found
    again = _first_loss(entry, opener, (*[passed] * CONFIRMATIONS, failed), slowness)
    return found if again == found else None


def _first_loss(entry: HostEntry, opener: Opener, sizes: Sequence[int], slowness: float) -> tuple[int, int] | None:
    """Send messages over a new connection; return the last size that came back and the first that did not."""
    try:
        pipe = opener.open(entry, COMMAND)
    except (ClusterddpError, OSError):
        return None
    passed = 0
    try:
        for size in sizes:
            if not _comes_back(pipe, size, slowness * (MESSAGE_TIMEOUT if passed else FIRST_TIMEOUT)):
                return (passed, size) if passed else None
            passed = size
    finally:
        pipe.close()
    return None


def _comes_back(pipe: BytePipe, size: int, timeout: float) -> bool:
    """Whether a message comes back in time; closes the pipe if it does not."""
    message = secrets.token_hex(size // 2).encode() + b"\n"  # random: nothing on the way can compress it much
    watchdog = threading.Timer(timeout, pipe.close)
    watchdog.daemon = True
    watchdog.start()
    received = b""
    try:
        with contextlib.suppress(OSError, ValueError):  # the watchdog has closed the pipe
            pipe.write(message)
            while message not in received and len(received) < _MAX_NOISE + size:
                data = pipe.read(1 << 16)
                if not data:
                    return False
                received += data
    finally:
        watchdog.cancel()
    return message in received
