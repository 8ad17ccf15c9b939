"""A call repeated for each of several hosts while a block runs, beside everything else: a thread a host.

Neither a paused terminal nor another host that is out of reach holds a host's turn back.
"""

from __future__ import annotations

import contextlib
import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator


@contextlib.contextmanager
def repeated(hosts: Iterable[str], turn: Callable[[str, threading.Event], bool], *, every: float) -> Iterator[None]:
    """While the block runs, call ``turn(host, over)`` every so many seconds, until it returns False.

    Args:
        hosts: One thread each.
        turn: One call; ``over`` is set when the block has ended. Its return says whether there is another.
        every: Seconds before each call.
    """
    over = threading.Event()

    def repeat(host: str) -> None:
        while not over.wait(every) and turn(host, over):
            pass

    for host in hosts:
        threading.Thread(target=repeat, args=(host,), name=f"repeated {host}", daemon=True).start()
    try:
        yield
    finally:
        over.set()
