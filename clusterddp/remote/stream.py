"""The data of sync_apply: the manifest's bytes, then contents, each a JSON line ``[path, size]`` and its bytes.

The whole is plain or one zlib stream. The same module reads it on the host and names its parts for the operator.
"""

import json
import zlib
from typing import Callable, Iterator, List, Optional, Tuple

from .state import Refused

PLAIN, ZLIB = "plain", "zlib"
_CUT = "the upload was cut short"


def heading(path: str, size: int) -> bytes:
    """The line before a file's bytes."""
    return json.dumps([path, size], separators=(",", ":")).encode() + b"\n"


class Incoming:
    """Reads the parts in order from pieces as they come."""

    def __init__(self, read: Callable[[], bytes], encoding: str) -> None:
        self._read = read
        self._buffer = b""
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
            if not self._buffer and not self._more():
                raise Refused(_CUT, "sync again")
            piece, self._buffer = self._buffer[:size], self._buffer[size:]
            size -= len(piece)
            yield piece

    def heading(self) -> Optional[Tuple[str, int]]:
        """Path and size of the next file; None at the end."""
        while b"\n" not in self._buffer:
            if not self._more():
                if self._buffer:
                    raise Refused(_CUT, "sync again")
                return None
        line, _, self._buffer = self._buffer.partition(b"\n")
        values: List[object] = json.loads(line)
        return str(values[0]), int(str(values[1]))

    def _more(self) -> bool:
        """Append what comes next to the buffer; False at the end."""
        while True:
            data = self._read()
            if not data:
                return False
            plain = self._inflate.decompress(data) if self._inflate else data
            if plain:
                self._buffer += plain
                return True
