"""Limits on what a host's answer may cost here, checked on its bytes before it is parsed.

A few bytes of JSON can become a large value: ``[],`` takes three bytes on the wire and eighty in memory. So the memory
that a text would take is estimated by counting its characters, and a text over its limit is refused without being
parsed. The few operations whose answer grows with the number of files asked about set ``Limit.of_files``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from clusterddp.errors import HelperError
from clusterddp.remote.shared.schema.json_text import encodable, to_json
from clusterddp.remote.shared.wire.frames import parse_json

MAX_MEMORY = 64 << 20  # bytes that one answer may take here, all copies of it together
FRAME_COST = 512  # bytes that each frame of an answer counts beside its body: to read the shortest takes time too
_FILE_COST = 1536  # bytes that one more file in a list may take: its path, kind, size and the digest of its content
_COPIES = 2.2  # copies of the text: a bytearray with its spare room, and the text made from it
# The most bytes that Python takes for each: a slot of a list, a text besides its characters, the same for a text with
# characters of more than a byte, a list, an object, a field of an object, a number.
_SLOT, _TEXT, _WIDE_TEXT, _LIST, _OBJECT, _FIELD, _NUMBER = 10, 64, 96, 100, 240, 80, 32


@dataclass(frozen=True, kw_only=True, slots=True)
class Limit:
    """The limits on one answer."""

    memory: int = MAX_MEMORY  # bytes it may take here, all copies together
    # its texts may be names of files, which hold bytes that are no UTF-8 as surrogates (U+DC80 to U+DCFF)
    paths: bool = False
    remedy: str = ""  # what a user can do where the answer would be more; empty: nothing

    @classmethod
    def of_files(cls, count: int) -> Limit:
        """Return the limit for an answer that lists at most ``count`` files, contents or chunks, all known here."""
        return cls(memory=MAX_MEMORY + _FILE_COST * count, paths=True)

    @property
    def bytes(self) -> int:
        """The most bytes of text to collect: a longer text would exceed the memory limit by itself."""
        return int(self.memory / _COPIES)


DEFAULT_LIMIT = Limit()
PATHS_LIMIT = Limit(paths=True)


class TooLargeError(ValueError):
    """An answer would take more than its limit."""


class PiecedAnswer:
    """An answer that is put together from several frames."""

    def __init__(self, host: str, limit: Limit) -> None:
        self.text = bytearray()
        self._host, self._limit = host, limit
        self._frames = 0

    def add(self, piece: bytes) -> None:
        """Append the body of one more frame; raises HelperError if the answer is over its limit."""
        self.text += piece
        self._frames += 1
        if len(self.text) + FRAME_COST * self._frames > self._limit.bytes:
            over = f"its answer is over {self._limit.bytes >> 20} MiB"
            raise HelperError(self._host, over, remedy=self._limit.remedy)

    def checked(self) -> bytes:
        """Return the whole answer as checked text, for a caller that parses it again; raises HelperError."""
        value = self.value() if self.text else None
        return to_json(value).encode() if _has_surrogates(self.text) else bytes(self.text)

    def value(self) -> Any:
        """Parse the whole answer; raises HelperError if it is no JSON or over its limit."""
        try:
            return parse_answer(self.text, self._limit)
        except TooLargeError as error:
            raise HelperError(self._host, str(error), remedy=self._limit.remedy) from error
        except ValueError as error:
            raise HelperError(self._host, f"its answer is no JSON: {error}") from error


def parse_answer(text: bytes | bytearray, limit: Limit = DEFAULT_LIMIT) -> Any:
    """Parse an answer; every text in it can be written as UTF-8, or is a path where ``limit`` allows paths.

    Raises ValueError if it is no JSON as a helper writes it, or would take more than its limit.
    """
    if not text.isascii():
        raise ValueError("it holds bytes that no JSON of a helper has")
    needed = memory_cost(text)
    if needed > limit.memory:
        took = f"its answer would take {needed >> 20} MiB of memory; {limit.memory >> 20} MiB are its limit"
        raise TooLargeError(took)
    value = parse_json(text)
    return encodable(value, paths=limit.paths) if _has_surrogates(text) else value


def memory_cost(text: bytes | bytearray) -> int:
    """Estimate the most bytes of memory that parsing a JSON text takes; characters inside strings count too."""
    strings = max(0, text.count(b'"') - text.count(b'\\"')) // 2
    has_escapes, is_copied = b"\\u" in text, _has_surrogates(text)  # `encodable` makes a copy then
    width = 4 if is_copied else 2 if has_escapes else 1  # bytes of a character in memory
    lists, objects, fields = text.count(b"["), text.count(b"{"), text.count(b":")
    values = 1 + text.count(b",") + lists + objects  # the first in each, and one after each comma
    others = max(0, values + fields - strings)  # values that are not texts; each field's name is a text more
    size = _SLOT * values + _NUMBER * others + (_WIDE_TEXT if has_escapes else _TEXT) * strings
    size += _LIST * lists + _OBJECT * objects + _FIELD * fields
    return int(len(text) * (_COPIES + width)) + size * (1 + is_copied)


def _has_surrogates(text: bytes | bytearray) -> bool:
    """Whether the JSON text escapes a surrogate: half of a character beyond U+FFFF."""
    return b"\\ud" in text or b"\\uD" in text
