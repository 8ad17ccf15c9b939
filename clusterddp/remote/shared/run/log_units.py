"""Units of a worker's output: a line with its newline, or one redraw of a progress bar with its carriage return."""

from typing import Union

Bytes = Union[bytes, bytearray]


def first_unit(data: Bytes) -> int:
    """The end of the first whole unit, or 0."""
    newline = data.find(b"\n")
    redraw = data.find(b"\r", 0, newline if newline >= 0 else len(data) - 1)
    return redraw + 1 if redraw >= 0 and redraw != newline - 1 else newline + 1


def last_unit(data: Bytes, low: int = 0) -> int:
    """The end of the last whole unit at or after ``low``, or 0; a carriage return at the end may be half a newline."""
    newline = data.rfind(b"\n", low)
    return max(newline, data.rfind(b"\r", max(low, newline + 1), len(data) - 1)) + 1
