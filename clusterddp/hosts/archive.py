"""The zipapp as an archive: sources, byte code beside them, and an index of that.

Byte code is stored as it is: what is sent is compressed as one, and a host decompresses nothing for each import.

Not here: which files it holds and where it is kept (zipapp.py).
"""

from __future__ import annotations

import hashlib
import io
import marshal
import zipfile
from typing import TYPE_CHECKING

from clusterddp.hosts.byte_code import compiled, pyc

if TYPE_CHECKING:
    from collections.abc import Mapping

_FINDER = "system/indexed_code.py"
_LOCAL_HEADER = 30  # bytes before a member's name


def archive(members: Mapping[str, bytes]) -> bytes:
    """The archive of files by name."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as made:
        _write(made, members)
    return buffer.getvalue()


def indexed(members: Mapping[str, bytes], package: str) -> tuple[bytes, tuple[int, int, bytes]]:
    """The archive with byte code for ``package``; and offset, size and sha256 of its index."""
    sources = {name: data for name, data in members.items() if name.startswith(f"{package}/") and name.endswith(".py")}
    made_code = {f"{name}c": pyc(data, name) for name, data in sources.items()}
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as made:
        _write(made, members)
        _write(made, made_code, zipfile.ZIP_STORED)
        places = {
            info.filename: (info.header_offset + _LOCAL_HEADER + len(info.filename.encode()), info.file_size)
            for info in made.infolist()
        }
        modules = {
            _module(name): (*places[name], hashlib.sha256(data).digest(), name.endswith("/__init__.pyc"))
            for name, data in made_code.items()
        }
        finder = f"{package}/{_FINDER}"
        index = marshal.dumps((compiled(members[finder], finder), modules))
        offset = buffer.tell() + _LOCAL_HEADER + len("index")
        _write(made, {"index": index}, zipfile.ZIP_STORED)
    return buffer.getvalue(), (offset, len(index), hashlib.sha256(index).digest())


def _write(made: zipfile.ZipFile, members: Mapping[str, bytes], how: int = zipfile.ZIP_DEFLATED) -> None:
    for name, data in members.items():
        made.writestr(zipfile.ZipInfo(name), data, how)  # a fixed date: the digest tells the sources, not the build


def _module(name: str) -> str:
    """The module of a ``.pyc`` file."""
    return name.removesuffix(".pyc").removesuffix("/__init__").replace("/", ".")
