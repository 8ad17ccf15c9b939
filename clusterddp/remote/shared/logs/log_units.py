"""Split a worker's output into units: a line with its newline, or one redraw of a progress bar with its CR."""

from typing import Union

Bytes = Union[bytes, bytearray]


def first_unit(data: Bytes) -> int:
    """The offset behind the first complete unit, or 0 if there is none."""
    newline = data.find(b"\n")
    redraw = data.find(b"\r", 0, newline if newline >= 0 else len(data) - 1)
    return redraw + 1 if redraw >= 0 and redraw != newline - 1 else newline + 1


def last_unit(data: Bytes, low: int = 0) -> int:
    """The offset behind the last complete unit that ends after ``low``, or 0 if there is none.

    A carriage return at the very end does not count: it may be the first half of a CRLF.
    """
    newline = data.rfind(b"\n", low)
    return max(newline, data.rfind(b"\r", max(low, newline + 1), len(data) - 1)) + 1
