"""The fields of run control's messages: their readers, and how long they may be."""

import re
from typing import Tuple

from ..shared.schema.fields import Fields
from ..shared.schema.record import Reader, checked
from ..shared.text.shortening import cut_in_the_middle

MAX_NODES = 4096
MAX_ATTEMPTS = 1_000_000
MAX_CAUSE = 300  # characters of a node's cause of failure
MAX_REASON = 1000  # characters of a reason, which may name many hosts
MAX_TABLE_PART = 48 * 1024  # bytes of a table's part; a single row is far smaller
MAX_ROW_OVERHEAD = 60  # bytes of a table's row besides its status: the member, the age, names and punctuation
MAX_VERDICT_PART = 24 * 1024  # characters of a verdict's part; JSON may escape each to two
MAX_PARTS = 1024  # of a verdict
MAX_NAME = 255  # characters of a host's name or address
NONCE_DIGITS, PROOF_DIGITS = 32, 64  # hexadecimal digits


def cut(text: str, limit: int) -> str:
    """Shorten a text to at most ``limit`` characters and replace NUL and lone surrogates."""
    clean = text.replace("\0", " ").encode("utf-8", "replace").decode("utf-8")
    return cut_in_the_middle(clean, limit)


def text_up_to(limit: int) -> Reader[str]:
    """Return a reader of a text of at most ``limit`` characters, without NUL and lone surrogates."""
    return checked(lambda text: text == cut(text, limit), "a text of up to %d" % limit)


def host_name(known: Fields, name: str) -> str:
    """Read a host's name as a node's plan may hold it."""
    known.filename(name)
    return text_up_to(MAX_NAME)(known, name)


def digits(count: int) -> Reader[str]:
    """Return a reader of so many hexadecimal digits."""
    return checked(re.compile("[0-9a-f]{%d}" % count).fullmatch, "%d hexadecimal digits" % count)


def number_in(minimum: int, maximum: int) -> Reader[int]:
    """Return a reader of a whole number in a range."""

    def read(known: Fields, name: str) -> int:
        value = known.number(name, maximum)
        if value < minimum:
            raise known.wrong(name, value, "at least %d" % minimum)
        return value

    return read


def member_indexes(known: Fields, name: str) -> Tuple[int, ...]:
    """Read member indexes, each once."""
    found = known.numbers(name)
    if len(set(found)) < len(found) or max(found, default=0) >= MAX_NODES:
        raise known.wrong(name, found, "member indexes, each once")
    return found


MEMBER = number_in(0, MAX_NODES - 1)
ATTEMPT = number_in(1, MAX_ATTEMPTS)
PORT = number_in(0, 65535)
COUNT = number_in(0, 1 << 53)
NONCE, PROOF = digits(NONCE_DIGITS), digits(PROOF_DIGITS)
