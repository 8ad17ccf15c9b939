"""The remote code as one zipapp, and the first bytes of a connection, which install it on a host."""

from __future__ import annotations

import functools
import hashlib
import importlib.util
import json
import logging
import marshal
import os
import struct
import threading
import zlib
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from clusterddp.hosts import code_cache
from clusterddp.remote.shared.run.plan import BACKEND
from clusterddp.remote.shared.wire.frames import MAGIC, PROTOCOL

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

_log = logging.getLogger("clusterddp")
REMOTE = Path(__file__).parents[1] / "remote"
PACKAGE = "clusterddp_remote"  # the name of remote/ inside the zipapp
MAGIC_WORD = f"{MAGIC.decode()}{PROTOCOL}"
# What torch looks for in an agent that has the zipapp on its PYTHONPATH.
_PLUGIN = {
    "METADATA": f"Metadata-Version: 2.1\nName: {PACKAGE}\nVersion: 0\n",
    "entry_points.txt": f"[torchrun.handlers]\n{BACKEND} = {PACKAGE}.rendezvous:creator\n",
}
_ENTRY = f"import sys\nfrom {PACKAGE}.__main__ import main\nsys.exit(main())\n"


_BUILD_LOCK = threading.Lock()  # one thread reads or makes the bundle; the other hosts' threads wait
# The header before a kept archive: digests of the files' states, of their contents, of the archive; its Index.
_HEADER = struct.Struct(">32s32s32sQQ32s")

# Stage by stage: sh picks an interpreter by the first two lines of stdin; that interpreter runs the program
# whose length stands on the next line. One constant string: no host, user or path is ever part of it, so no
# login shell (csh, fish, …) parses data. It holds no backslash, `!` or newline, which
# one of them would read.
# That program is short, as it is compiled each time, and runs one of the two forms of the next that follow it.
TOO_OLD, NO_PYTHON = 97, 98
_PYC_HEADER = 16  # bytes before the code in a .pyc file
_FINDER = (
    "import marshal,sys,zlib\n"
    "b,s=i.read(%d),i.read(%d)\n"
    "m=sys.modules['_frozen_importlib_external'].MAGIC_NUMBER==%r\n"
    "exec(marshal.loads(zlib.decompress(b)) if m else zlib.decompress(s))\n"
)
_LOADER = (
    "import sys;sys.version_info<(3,8)and sys.exit(97);"
    "i=open(0,chr(114)+chr(98),closefd=False);exec(i.read(int(i.readline())))"
)
COMMAND = (
    "exec /bin/sh -c 'IFS= read -r a; IFS= read -r b; s=98; "
    'if test -n "$a"; then set -- "$a"; else set -- python3 "$b"; fi; '
    'for p; do case "$p" in "~/"*) p="$HOME/${p#??}";; esac; command -v "$p" >/dev/null 2>&1 || continue; '
    f'"$p" -I -S -c "{_LOADER}"; s=$?; test $s = 97 || exit $s; done; exit $s\''
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Index:
    """Position of the index of byte code in a zipapp (``remote/system/indexed_code.py``)."""

    offset: int
    size: int
    sha256: bytes


@dataclass(frozen=True, kw_only=True, slots=True)
class Bundle:
    """The zipapp's bytes, their sha256 in hex, and the index of its byte code if it has one."""

    code: bytes = field(repr=False)
    digest: str
    index: Index | None = None
    # whether a host whose Python finds no byte code in it makes and keeps its own (``remote/helper/own_code.py``)
    kept: bool = False

    def opening(self, *, interpreter: str | None, fallback: str | None, state: str | None) -> bytes:
        """The first bytes to send on a new connection: a program that looks for the code on the host.

        ``interpreter`` (``ansible_python_interpreter``), if given, is used alone. ``fallback`` (``clusterddp_python``)
        is used if the host's ``python3`` is missing or older than 3.8. ``state`` is ``clusterddp_state``.
        """
        choice = f"{interpreter or ''}\n{fallback or ''}\n".encode()
        return choice + _finder(self) + (state or "").encode().hex().encode() + b"\n"

    def introduction(self, *, state: str | None) -> bytes:
        """The bytes to send to a host that lacks the code: a program that receives it."""
        number = importlib.util.MAGIC_NUMBER.hex() if self.index else "none" if self.kept else None
        index = (self.index.offset, self.index.size) if self.index else None
        size = len(self.packed)
        request = {"digest": self.digest, "size": size, "state": state, "byte_code": number, "index": index}
        return (
            _program(("indexed_code.py", "bootstrap.py"), f"receive_helper(i, {MAGIC_WORD!r})")
            + json.dumps(request).encode()
            + b"\n"
        )

    @property
    def packed(self) -> bytes:
        """The zipapp as sent, compressed."""
        return _compress(self.code)


@functools.lru_cache(maxsize=2)
def _compress(code: bytes) -> bytes:
    return zlib.compress(code)


@functools.cache
def _program(names: tuple[str, ...], call: str) -> bytes:
    """Concatenate sources of ``remote/system`` and a call, after a line with their length."""
    program = b"".join((REMOTE / "system" / name).read_bytes() for name in names) + f"\n{call}\n".encode()
    return b"%d\n" % len(program) + program


@functools.lru_cache(maxsize=2)
def _finder(made: Bundle) -> bytes:
    """The program that looks for the code on a host: as byte code, and as source for another Python than ours.

    To compile it takes a host half as long as to start Python.
    """
    index = (b"none" if made.kept else b"", 0, 0, "")
    byte_code = b""
    if made.index:
        index = (importlib.util.MAGIC_NUMBER, made.index.offset, made.index.size, made.index.sha256.hex())
        _, modules = marshal.loads(made.code[made.index.offset :][: made.index.size])  # noqa: S302 - made by us
        offset, size, *_ = modules[f"{PACKAGE}.system.code_finder"]
        byte_code = made.code[offset + _PYC_HEADER : offset + size]
    forms = [zlib.compress(form, 9) for form in (byte_code, (REMOTE / "system" / "code_finder.py").read_bytes())]
    program = _FINDER % (*map(len, forms), index[0])
    program += f"find_code(i, {MAGIC_WORD!r}, {made.digest!r}, {index!r})\n"
    return b"".join((b"%d\n" % len(program), program.encode(), *forms))


def bundle() -> Bundle:
    """Return the zipapp of ``clusterddp/remote``, with byte code where this Python keeps its own (`__pycache__`).

    A host with a Python of the same version then need not compile what it imports, at each connection and for each
    process of a run; zipimport ignores byte code of another version and uses the source beside it.
    """
    with _BUILD_LOCK:
        return _bundle()


@functools.cache
def _bundle() -> Bundle:
    try:
        return _with_byte_code()
    except (OSError, NotImplementedError) as error:  # no folder can be written; a Python that keeps no byte code
        return _with_sources(_members(), f"it cannot be kept here: {error}; each host makes its own")


def _source_files() -> Iterator[tuple[str, os.stat_result]]:
    """Yield every file of ``remote/`` and its stat, in order. Every command does this, so without pathlib."""
    files = []
    for folder, folders, names in os.walk(REMOTE):
        folders[:] = [name for name in folders if name != "__pycache__"]
        files += [f"{folder}/{name}" for name in names]
    for path in sorted(files):
        yield path, os.stat(path)  # noqa: PTH116 - as above


def _members() -> dict[str, bytes]:
    """The zipapp's files by name; the same for the same sources."""
    members = {"__main__.py": _ENTRY.encode()}
    members |= {f"{PACKAGE}-0.dist-info/{name}": text.encode() for name, text in _PLUGIN.items()}
    for path, _ in _source_files():
        members[PACKAGE + path[len(str(REMOTE)) :]] = Path(path).read_bytes()
    return members


def _source_digest() -> bytes:
    """A digest that changes whenever a source is written: Python's own check of its byte code, but stricter."""
    digest = hashlib.sha256(repr((importlib.util.MAGIC_NUMBER, _ENTRY, _PLUGIN)).encode())
    for path, info in _source_files():
        numbers = (info.st_size, info.st_mtime_ns, info.st_ctime_ns, info.st_ino)
        digest.update(f"{path}\0{numbers}".encode(errors="surrogateescape"))
    return digest.digest()


def _content_digest(members: Mapping[str, bytes]) -> bytes:
    """A digest of the zipapp's files and of the Python that made their byte code."""
    digest = hashlib.sha256(importlib.util.MAGIC_NUMBER)
    for name, data in members.items():
        digest.update(b"%s %d " % (name.encode(), len(data)) + data)
    return digest.digest()


def _with_byte_code() -> Bundle:
    """Return the archive with byte code: read from where it is kept, or made and kept there with its digests.

    PYTHONDONTWRITEBYTECODE does not apply: it is about modules beside their sources, and without kept byte code hosts
    would compile at each connection what is compiled once here. Raises OSError if it cannot be kept: compiling all for
    every command would cost more than it saves; NotImplementedError if this Python keeps no byte code.
    """
    path = Path(importlib.util.cache_from_source(str(REMOTE / "zipapp.py"))).with_suffix(".pyz")
    state, size = _source_digest(), 32
    copies = []
    for copy in code_cache.copies(path):
        if copy.startswith(state):
            return _parse_stored(copy)
        copies.append(copy)
    members = _members()
    content = _content_digest(members)
    same = [copy for copy in copies if copy[size:].startswith(content)]  # checked out anew, or copied
    if same:
        stored = state + same[0][size:]
    else:
        from clusterddp.remote.shared.code.code_archive import archive_with_index  # noqa: PLC0415 - once a version

        code, index = archive_with_index(members, PACKAGE)
        stored = _HEADER.pack(state, content, hashlib.sha256(code).digest(), *index) + code
    code_cache.store(path, stored)
    return _parse_stored(stored)


def _parse_stored(data: bytes) -> Bundle:
    """Read a stored archive and its header."""
    _, _, digest, offset, size, sha256 = _HEADER.unpack_from(data)
    index = Index(offset=offset, size=size, sha256=sha256)
    return Bundle(code=data[_HEADER.size :], digest=digest.hex(), index=index, kept=True)


def _with_sources(members: Mapping[str, bytes], reason: str) -> Bundle:
    _log.debug("helpers run from sources, at about twice the CPU, for want of byte code: %s", reason)
    from clusterddp.remote.shared.code.code_archive import archive  # noqa: PLC0415 - not where byte code can be kept

    code = archive(members)
    return Bundle(code=code, digest=hashlib.sha256(code).hexdigest(), kept=True)
