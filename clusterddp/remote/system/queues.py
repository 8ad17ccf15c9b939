"""``deque`` without the rest of ``collections``, whose import each connection would pay."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections import deque
else:
    try:
        from _collections import deque
    except ImportError:  # another Python than CPython
        from collections import deque

__all__ = ["deque"]
