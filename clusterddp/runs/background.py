"""Repeat a call in the background for each of several hosts, one thread per host, while a ``with`` block runs.

A paused terminal or another unreachable host does not delay a host's call.
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
    """While the block runs, call ``call(host, over)`` every ``every`` seconds for each host, until it returns False.

    The first call comes after ``every`` seconds. The event ``over`` is set when the block has ended.
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
