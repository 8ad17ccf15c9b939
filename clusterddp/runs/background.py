"""A call repeated in the background for each of several hosts, a thread a host, while a ``with`` block runs.

Neither a paused terminal nor another unreachable host delays a host's call.
"""

from __future__ import annotations

import contextlib
import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator


@contextlib.contextmanager
def repeated_on_hosts(
    hosts: Iterable[str], call: Callable[[str, threading.Event], bool], *, every: float
) -> Iterator[None]:
    """While the block runs, call ``call(host, over)`` every ``every`` s for each host, until it returns False.

    Args:
        hosts: One thread each.
        call: ``over`` is set when the block has ended.
        every: Seconds before each call.
    """
    over = threading.Event()

    def repeat(host: str) -> None:
        while not over.wait(every) and call(host, over):
            pass

    for host in hosts:
        threading.Thread(target=repeat, args=(host,), name=f"repeated {host}", daemon=True).start()
    try:
        yield
    finally:
        over.set()
