"""Chooses a free TCP port of this machine as MASTER_PORT."""

from __future__ import annotations

import contextlib
import random
import socket
from typing import TYPE_CHECKING

from clusterddp.errors import DiscoverError

if TYPE_CHECKING:
    from collections.abc import Iterator

FIRST, LAST = 29400, 29499  # not ephemeral ports, and the range that our firewall playbook opens


@contextlib.contextmanager
def free_port(wanted: int | None, family: int) -> Iterator[int]:
    """A port free on all addresses of a family (4 or 6): the one wanted, else one of 29400-29499, else any.

    A port that was not wanted is held until the context ends, so that two jobs on this machine choose two. Between then
    and its use by torch anybody may take it. It never listens: whoever calls too early is refused and tries again, as
    before any start of torch's store. Raises ``DiscoverError`` if the port wanted is taken.
    """
    with socket.socket(socket.AF_INET if family == 4 else socket.AF_INET6, socket.SOCK_STREAM) as sock:
        if not wanted:
            yield _hold_any(sock)
            return
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as torch does, for ports in TIME_WAIT
        try:
            sock.bind(("", wanted))
            sock.listen(1)  # with SO_REUSEADDR several may bind it, but only one can listen
        except OSError as error:
            remedy = "give another --port, or leave it out"
            raise DiscoverError(f"--port {wanted}: {error.strerror or error}", remedy=remedy) from None
        sock.close()
        yield wanted


def _hold_any(sock: socket.socket) -> int:
    for port in [*random.sample(range(FIRST, LAST + 1), LAST - FIRST + 1), 0]:
        with contextlib.suppress(OSError):  # taken: the next one
            sock.bind(("", port))
            break
    return int(sock.getsockname()[1])
