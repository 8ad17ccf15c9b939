"""Build the zipapp: sources, their byte code, and an index of the byte code.

Byte code is stored as it is: what is sent is compressed as one, and a host decompresses nothing for each import. The
operator makes it for its own Python; a host with another one makes it again from the sources (helper/own_code.py), and
what it has made tells of itself: its last bytes (the archive's comment) are where the index lies, and two digests.
"""

import hashlib
import io
import marshal
import zipfile
from typing import Dict, Mapping, Tuple

FINDER = "system/indexed_code.py"
INDEX = "index.pyc"
TRAILER = 80  # bytes: the index's offset and size (8 each, big-endian) and sha256, the sha256 of all before that
_LOCAL_HEADER = 30  # bytes before a member's name


def archive(members: Mapping[str, bytes]) -> bytes:
    """Pack files, given by name, into a zip archive."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as made:
        _write(made, members)
    return buffer.getvalue()


def archive_with_index(members: Mapping[str, bytes], package: str) -> Tuple[bytes, Tuple[int, int, bytes]]:
    """Pack files with byte code for ``package``; return the archive, and its index's offset, size and sha256."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as made:
        spot = _write_indexed(made, buffer, members, package)
    return buffer.getvalue(), spot


def rebuild_with_index(zipapp: bytes) -> bytes:
    """Repack a zipapp with byte code for this Python version and a trailer that locates the index.

    Raises ValueError, SyntaxError, StopIteration or zipfile.BadZipFile if the file is no zipapp of ours.
    """
    with zipfile.ZipFile(io.BytesIO(zipapp)) as given:
        members = {name: given.read(name) for name in given.namelist() if not name.endswith(".pyc")}
    package = next(name for name in members if name.endswith("/" + FINDER))[: -len(FINDER) - 1]
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as made:
        offset, size, digest = _write_indexed(made, buffer, members, package)
        made.comment = b"\0" * TRAILER
    whole = buffer.getvalue()[:-TRAILER]
    return b"".join((whole, offset.to_bytes(8, "big"), size.to_bytes(8, "big"), digest, hashlib.sha256(whole).digest()))


def is_whole(zipapp: bytes) -> bool:
    """Whether the content of a zipapp made by ``rebuild_with_index`` matches the digest at its end."""
    return hashlib.sha256(zipapp[:-TRAILER]).digest() == zipapp[-32:]


def _write_indexed(
    made: zipfile.ZipFile, buffer: io.BytesIO, members: Mapping[str, bytes], package: str
) -> Tuple[int, int, bytes]:
    """Write files, byte code and index into an archive; return the index's offset in it, size and sha256."""
    from .byte_code import compile_module, pyc  # a process that only reads archives compiles nothing

    sources = {name: data for name, data in members.items() if name.startswith(package + "/") and name.endswith(".py")}
    made_code = {name + "c": pyc(data, name, package) for name, data in sources.items()}
    _write(made, members)
    _write(made, made_code, zipfile.ZIP_STORED)
    positions = {
        info.filename: (info.header_offset + _LOCAL_HEADER + len(info.filename.encode()), info.file_size)
        for info in made.infolist()
    }
    modules: Dict[str, Tuple[int, int, bytes, bool]] = {
        _module(name): (*positions[name], hashlib.sha256(data).digest(), name.endswith("/__init__.pyc"))
        for name, data in made_code.items()
    }
    finder = "%s/%s" % (package, FINDER)
    index = marshal.dumps((compile_module(members[finder], finder, package), modules))
    offset = buffer.tell() + _LOCAL_HEADER + len(INDEX)
    _write(made, {INDEX: index}, zipfile.ZIP_STORED)
    return offset, len(index), hashlib.sha256(index).digest()


def _write(made: zipfile.ZipFile, members: Mapping[str, bytes], how: int = zipfile.ZIP_DEFLATED) -> None:
    for name, data in members.items():
        made.writestr(zipfile.ZipInfo(name), data, how)  # a fixed date: the digest depends on sources alone


def _module(name: str) -> str:
    """The module name that belongs to a ``.pyc`` file's name."""
    folder, _, stem = name[: -len(".pyc")].rpartition("/")
    return (folder if stem == "__init__" else folder + "/" + stem).replace("/", ".")
