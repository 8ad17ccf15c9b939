"""The data of sync_apply: the manifest's bytes, then contents, each a JSON line ``[path, size]`` and its bytes.

The whole is plain or one zlib stream. The same module reads it on the host and names its parts for the operator.
"""

import json
import zlib
from typing import Callable, Iterator, List, Optional, Tuple

from ..system.bootstrap import Refused

PLAIN, ZLIB = "plain", "zlib"
PIECE = 1 << 20  # bytes inflated at once, whatever the ratio
_CUT = "the upload was cut short"


def heading(path: str, size: int) -> bytes:
    """The line before a file's bytes."""
    return json.dumps([path, size], separators=(",", ":")).encode() + b"\n"


class Incoming:
    """Reads the parts in order from pieces as they come."""

    def __init__(self, read: Callable[[], bytes], encoding: str) -> None:
        self._read = read
        self._buffer = b""
        self._at = 0  # so far the buffer was given out
        self._inflate = zlib.decompressobj() if encoding == ZLIB else None

    def take(self, size: int) -> bytes:
        """Exactly ``size`` bytes; for parts that fit memory."""
        return b"".join(self.pieces(size))

    def pieces(self, size: int) -> Iterator[bytes]:
        """Exactly ``size`` bytes, as they come.

        Raises:
            Refused: the data ends before.
        """
        while size:
            if self._at == len(self._buffer) and not self._more():
                raise Refused(_CUT, "sync again")
            piece = self._buffer[self._at : self._at + size]
            self._at += len(piece)
            size -= len(piece)
            yield piece

    def heading(self) -> Optional[Tuple[str, int]]:
        """Path and size of the next file; None at the end."""
        end = self._buffer.find(b"\n", self._at)
        while end < 0:
            if not self._more():
                if self._at < len(self._buffer):
                    raise Refused(_CUT, "sync again")
                return None
            end = self._buffer.find(b"\n", self._at)
        values: List[object] = json.loads(self._buffer[self._at : end])
        self._at = end + 1
        return str(values[0]), int(str(values[1]))

    def _more(self) -> bool:
        """Append what comes next to the rest of the buffer; False at the end."""
        plain = self._plain()
        self._buffer, self._at = self._buffer[self._at :] + plain, 0
        return bool(plain)

    def _plain(self) -> bytes:
        if self._inflate is None:
            return self._read()
        while not self._inflate.eof:
            data = self._inflate.unconsumed_tail or self._read()
            if not data:
                return self._inflate.flush()
            plain = self._inflate.decompress(data, PIECE)
            if plain:
                return plain
        return b""
