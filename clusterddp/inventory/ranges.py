"""Host keys of an inventory: ranges (``gpu[01:16]``, ``n[a:c]``, ``x[0:8:2]``) and a port after a colon.

They mean the same as in Ansible, but what Ansible silently ignores (a range that is empty, that counts down, that
begins with several letters) is an error.
"""

from __future__ import annotations

import ipaddress
import re
import string
from typing import TYPE_CHECKING

from clusterddp.errors import InventoryError

if TYPE_CHECKING:
    from collections.abc import Iterator

_RANGE = re.compile(r"\[(?:[0-9a-f]+:[0-9a-f]+|[a-z]:[a-z])(?::[0-9]+)?\]", re.IGNORECASE)
_LABEL = re.compile(r"[\w-]*[^\W_]")
RANGE_REMEDY = "write [first:last] or [first:last:step], as in gpu[01:16] or n[a:f]"
MAX_HOSTS = 100_000  # a typing error such as [1:1000000000] must not exhaust memory


def split_port(text: str) -> tuple[str, int | None] | None:
    """Split ``name``, ``name:port`` or ``[IPv6]:port``, with or without ranges; None if it is no valid address."""
    bracketed = re.fullmatch(r"\[([^\[\]]+)\]:([0-9]+)", text)
    if bracketed and _is_ipv6(bracketed[1]):
        return bracketed[1], int(bracketed[2])
    if _is_ipv6(text):
        return text, None
    with_port = re.fullmatch(r"((?:[^:\[\]]|\[[^\]]*\])*):([0-9]+)", text)
    name, port = (with_port[1], int(with_port[2])) if with_port else (text, None)
    return (name, port) if _is_hostname(name) else None


def _is_ipv6(text: str) -> bool:
    try:
        return bool(ipaddress.IPv6Address(_RANGE.sub("1", text)))
    except ValueError:
        return False


def _is_hostname(name: str) -> bool:
    plain = _RANGE.sub("x", name)
    return all(not label.startswith("-") and _LABEL.fullmatch(label) for label in plain.split("."))


def expand(key: str, where: str) -> tuple[list[str], int | None]:
    """The host names that a host key of an inventory stands for, and its port.

    ``where`` is ``file:line:key`` for errors. Raises ``InventoryError`` for a bad range, or a colon that is neither
    before a port nor part of an IPv6 address.
    """
    address = split_port(key)
    name, port = address or (key, None)
    if not address and re.fullmatch(r"[^\[\]]*:[^\[\]]*", re.sub(r"\[[^\]]*\]", "", key)):
        raise InventoryError(
            f"{key!r} is not a host name, with or without a port",
            where=where,
            remedy="write name:port or [IPv6]:port, or set ansible_port",
        )
    names: list[str] = []
    for expanded in _expand(name, where):
        names.append(expanded)
        if len(names) > MAX_HOSTS:
            raise _range_error(key, f"stands for more than {MAX_HOSTS} hosts", where)
    return names, port


def _expand(name: str, where: str) -> Iterator[str]:
    """Yield the names that a name with any number of ranges stands for."""
    if "[" not in name and "]" not in name:
        yield name
        return
    head, opening, rest = name.partition("[")
    inside, closing, tail = rest.partition("]")
    if not opening or not closing or "]" in head:
        raise _range_error(name, "has unmatched brackets", where)
    for expanded in _expand_bracket(inside, tail, where):
        yield head + expanded


def _expand_bracket(inside: str, tail: str, where: str) -> Iterator[str]:
    """Yield each item of one range with each expansion of the text behind it."""
    for item in _items(inside, where):
        for rest in _expand(tail, where):
            yield item + rest


def _items(inside: str, where: str) -> Iterator[str]:
    """Yield what stands between two brackets, item by item: ``01``, ``02``, … of ``01:16``."""
    shown = f"[{inside}]"
    bounds = inside.split(":")
    if len(bounds) not in {2, 3}:
        raise _range_error(shown, "is not first:last or first:last:step", where)
    first, last = bounds[0] or "0", bounds[1]
    if not last:
        raise _range_error(shown, "has no last value", where)
    step = _number(bounds[2]) if len(bounds) == 3 else 1
    if not step:
        raise _range_error(shown, "needs a step of 1 or more", where)
    if first in string.ascii_letters and last in string.ascii_letters and len(first) == len(last) == 1:
        return _letters(first, last, step, where)
    return _numbers(first, last, step, where)


def _letters(first: str, last: str, step: int, where: str) -> Iterator[str]:
    begin, end = string.ascii_letters.index(first), string.ascii_letters.index(last)
    if begin > end:
        raise _range_error(f"[{first}:{last}]", "is empty: it begins after its end", where)
    return iter(string.ascii_letters[begin : end + 1 : step])


def _numbers(first: str, last: str, step: int, where: str) -> Iterator[str]:
    shown = f"[{first}:{last}]"
    begin, end = _number(first), _number(last)
    if begin is None or end is None:
        raise _range_error(shown, "is neither two numbers nor two single letters", where)
    width = len(first) if first.startswith("0") else 1
    if width > 1 and width != len(last):
        raise _range_error(shown, "has ends of different width", where)
    if begin > end:
        raise _range_error(shown, "is empty: it begins after its end", where)
    return (str(number).zfill(width) for number in range(begin, end + 1, step))


def _number(text: str) -> int | None:
    return int(text) if text.isascii() and text.isdigit() and len(text) <= 18 else None


def _range_error(shown: str, problem: str, where: str) -> InventoryError:
    return InventoryError(f"range {shown!r} {problem}", where=where, remedy=RANGE_REMEDY)
