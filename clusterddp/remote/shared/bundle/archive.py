"""A bundle's archive, tar.gz in memory: packed on a host or by the operator, and read back whatever the bytes are.

    unpack(pack([Member("why.txt", b"…")]))

Nothing is ever unpacked to a disk here. Still, only plain files with relative names of plain letters are accepted, so
that ``tar`` can unpack what this accepts: no link, no device, no way out of the folder.
"""

import io
import re
import tarfile
import zlib
from typing import Iterable, List, NamedTuple, Set

from ..schema.fields import DamagedError

MAX_MEMBER = 16 << 20  # bytes of one member
MAX_BYTES = 128 << 20  # bytes of all members, with their headers
MAX_MEMBERS = 20_000
# Of a name's parts none is longer than the oldest tar can store.
NAME = re.compile(
    r"(?:[A-Za-z0-9_%+@=,~-][A-Za-z0-9_.%+@=,~-]{0,89}/){0,8}[A-Za-z0-9_%+@=,~-][A-Za-z0-9_.%+@=,~-]{0,89}"
)
_BLOCK = tarfile.BLOCKSIZE
_FILES, _FOLDERS = (tarfile.REGTYPE, tarfile.AREGTYPE), (tarfile.DIRTYPE,)


class Member(NamedTuple):
    """One file of an archive."""

    name: str
    body: bytes


def pack(members: Iterable[Member], mtime: int) -> bytes:
    """The archive of these members, in this order, 0600 each; ``mtime``: when they were collected (s since the epoch).

    Raises ValueError for a name that ``unpack`` would refuse.
    """
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w:gz", format=tarfile.USTAR_FORMAT, compresslevel=6) as archive:
        for member in members:
            if not NAME.fullmatch(member.name):
                raise ValueError("%r cannot be a member's name" % member.name)
            header = tarfile.TarInfo(member.name)
            header.size, header.mode, header.mtime = len(member.body), 0o600, mtime
            archive.addfile(header, io.BytesIO(member.body))
    return out.getvalue()


def unpack(data: bytes, most: int = MAX_BYTES) -> List[Member]:
    """The members of an archive, of at most ``most`` bytes together.

    Raises DamagedError, and nothing else, if it is none, cut, too large or not plain.
    """
    plain = _decompress(data, most)
    members: List[Member] = []
    seen: Set[str] = set()
    at = 0
    while True:
        block = plain[at : at + _BLOCK]
        if len(block) < _BLOCK:
            raise DamagedError("it was cut")
        if not any(block):
            return members
        header = _header(block)
        if not 0 <= header.size <= MAX_MEMBER:
            raise DamagedError("its member %r is larger than %d MiB" % (header.name[:80], MAX_MEMBER >> 20))
        at += _BLOCK
        body = plain[at : at + header.size]
        if len(body) < header.size:
            raise DamagedError("it was cut")
        at += (header.size + _BLOCK - 1) // _BLOCK * _BLOCK
        if header.type in _FOLDERS:
            continue
        name = header.name[2:] if header.name.startswith("./") else header.name
        _check(header, name)
        if name in seen or len(seen) == MAX_MEMBERS:
            raise DamagedError("it has %r twice, or too many members" % name[:80])
        seen.add(name)
        members.append(Member(name, body))


def _decompress(data: bytes, most: int) -> bytes:
    if data[:2] != b"\x1f\x8b":
        raise DamagedError("it is no gzip archive")
    unpacker = zlib.decompressobj(31)
    try:
        plain = unpacker.decompress(data, most + 1)
    except zlib.error as error:
        raise DamagedError("it was changed: %s" % error) from None
    if len(plain) > most:
        raise DamagedError("it would unpack to more than %d MiB" % (most >> 20))
    if not unpacker.eof:
        raise DamagedError("it was cut")
    if unpacker.unused_data.strip(b"\0"):
        raise DamagedError("there is more behind its end")
    return plain


def _header(block: bytes) -> tarfile.TarInfo:
    try:
        return tarfile.TarInfo.frombuf(block, "utf-8", "backslashreplace")
    except (tarfile.TarError, ValueError, IndexError, OverflowError) as error:
        raise DamagedError("it holds no tar archive: %s" % error) from None


def _check(header: tarfile.TarInfo, name: str) -> None:
    if header.type not in _FILES:
        raise DamagedError("its member %r is no plain file" % name[:80])
    if not NAME.fullmatch(name):
        raise DamagedError("it has a member named %r" % name[:80])
