"""Split file contents into chunks of 4 MiB, each with its sha256, and name whole contents by digest.

A content of one chunk is named by the chunk's digest; one of several by the digest over theirs, a dash and their
number. So a list of chunks can be verified by the name, and each chunk by the list, in any order.
"""

import os
import sys
from typing import Any, Callable, Iterator, List, NamedTuple, Sequence, Tuple

CHUNK = 4 << 20
ZEROS = "bb9f8df61474d25e71fa00722318cd387396ca1736605e1248821cc0de3d3af8"  # the digest of a chunk of zeros
_MIN_READ = 1 << 16
_HEX, _DIGITS = "0123456789abcdef", "0123456789"


class Chunk(NamedTuple):
    """A piece of a file: the sha256 of its bytes in hex, and its size in bytes."""

    digest: str
    size: int


def _built_in() -> "Callable[[bytes], Any]":
    """Python's own sha256, which loads much faster than OpenSSL's."""
    try:
        found: "Callable[[bytes], Any]" = __import__("_sha2" if sys.version_info >= (3, 12) else "_sha256").sha256
    except ImportError:
        found = __import__("hashlib").sha256
    return found


class _Sha256:
    """Selects the sha256 implementation: Python's own at first, later OpenSSL's, which is five times as fast."""

    pays = 1 << 20  # bytes still to be hashed before loading OpenSSL pays
    made = _built_in()


def digest_of(data: bytes) -> str:
    """Return the sha256 of a chunk's bytes in hex."""
    if _Sha256.pays > 0:
        _Sha256.pays -= len(data)
        if _Sha256.pays <= 0 or "_hashlib" in sys.modules:
            import hashlib

            _Sha256.pays, _Sha256.made = 0, hashlib.sha256
    digest: str = _Sha256.made(data).hexdigest()
    return digest


def content_of(digests: Sequence[str]) -> str:
    """Return the name of the content with these chunks."""
    if len(digests) == 1:
        return digests[0]
    return "%s-%d" % (digest_of("".join(digests).encode()), len(digests))


def is_content(text: str) -> bool:
    """Whether a text is a valid content name."""
    digest, dash, count = text.partition("-")
    return is_digest(digest) and (not dash or (0 < len(count) <= 10 and count[0] != "0" and not count.strip(_DIGITS)))


def is_digest(text: str) -> bool:
    """Whether a text is a sha256 in hex."""
    return len(text) == 64 and not text.strip(_HEX)


def chunk_spans(size: int) -> Iterator[Tuple[int, int]]:
    """Yield offset and size of each chunk of a file; an empty file has one empty chunk."""
    for offset in range(0, max(size, 1), CHUNK):
        yield offset, min(CHUNK, size - offset)


def chunks_of(content: str, size: int, digests: Any) -> List[Chunk]:
    """Make a content's chunks from a list of digests, which is checked: it may be untrusted; raises ValueError."""
    if not is_content(content) or not isinstance(digests, list) or not isinstance(size, int) or size < 0:
        raise ValueError("not the chunks of a content: %.80r" % content)
    if not all(isinstance(one, str) and is_digest(one) for one in digests):
        raise ValueError("not a list of chunks: %.80r" % digests)
    if len(digests) != max(1, -(-size // CHUNK)) or content_of(digests) != content:
        raise ValueError("the chunks are not those of %.80s" % content)
    return [Chunk(digest, length) for digest, (_, length) in zip(digests, chunk_spans(size))]


def read_at(handle: int, offset: int, size: int) -> bytes:
    """Read up to ``size`` bytes at an offset; fewer only at the file's end."""
    # A buffer of 4 MiB costs more than to read and hash a small file.
    end = os.fstat(handle).st_size
    most = max(_MIN_READ, end - offset)
    found = b""
    while len(found) < size:
        data = os.pread(handle, min(most, size - len(found)), offset + len(found))
        found = found + data if found else data
        if not data or 0 < end <= offset + len(found):  # a file that is not on a disk may report size 0 and hold data
            break
    return found


def write_at(handle: int, data: bytes, offset: int) -> None:
    """Write all of the data at an offset."""
    view = memoryview(data)
    while view:
        written = os.pwrite(handle, view, offset)
        view, offset = view[written:], offset + written


def hash_file(path: bytes, check: Callable[[], None] = lambda: None) -> Tuple[int, List[str]]:
    """Hash a file; return the number of bytes read and the digests of its chunks; ``check`` is called before each."""
    handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        return hash_handle(handle, check)
    finally:
        os.close(handle)


def hash_handle(handle: int, check: Callable[[], None] = lambda: None) -> Tuple[int, List[str]]:
    """Like ``hash_file``, for an open file."""
    size, digests = 0, []  # type: Tuple[int, List[str]]
    while True:
        check()
        data = read_at(handle, size, CHUNK)
        if not data and digests:
            return size, digests
        digests.append(digest_of(data))
        size += len(data)
        if len(data) < CHUNK:
            return size, digests
