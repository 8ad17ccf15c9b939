"""The remote code as one zipapp, and the first bytes of a connection that put it on a host.

Not here: opening the connection (connection.py) and speaking with the helper (hosts/client.py).
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import importlib.util
import io
import json
import marshal
import os
import struct
import sys
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from clusterddp.remote.shared.frames import MAGIC, PROTOCOL
from clusterddp.remote.shared.plan import BACKEND

if TYPE_CHECKING:
    from collections.abc import Mapping

REMOTE = Path(__file__).parents[1] / "remote"
PACKAGE = "clusterddp_remote"  # the name of remote/ inside the zipapp
MAGIC_WORD = f"{MAGIC.decode()}{PROTOCOL}"
# What torch looks for in an agent that has the zipapp on its PYTHONPATH.
_PLUGIN = {
    "METADATA": f"Metadata-Version: 2.1\nName: {PACKAGE}\nVersion: 0\n",
    "entry_points.txt": f"[torchrun.handlers]\n{BACKEND} = {PACKAGE}.rendezvous:creator\n",
}
_ENTRY = f"import sys\nfrom {PACKAGE}.__main__ import main\nsys.exit(main())\n"

_UNCHECKED = 1  # a .pyc file's flags (PEP 552): a digest in place of a time, and nobody compares it

# Stage by stage: sh picks an interpreter by the first two lines of stdin; that interpreter runs the program
# whose length stands on the next line. One constant string: no host, user or path is ever part of it, so no
# login shell (csh, fish, …) parses data. It holds no backslash, `!` or newline, which
# one of them would read.
TOO_OLD, NO_PYTHON = 97, 98
_STAGE = (
    "import sys;sys.version_info<(3,8)and sys.exit(97);"
    "i=open(0,chr(114)+chr(98),closefd=False);exec(i.read(int(i.readline())))"
)
COMMAND = (
    "exec /bin/sh -c 'IFS= read -r a; IFS= read -r b; s=98; "
    'if test -n "$a"; then set -- "$a"; else set -- python3 "$b"; fi; '
    'for p; do command -v "$p" >/dev/null 2>&1 || continue; '
    f'"$p" -I -S -c "{_STAGE}"; s=$?; test $s = 97 || exit $s; done; exit $s\''
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Bundle:
    """The zipapp's bytes and their sha256 in hex."""

    code: bytes
    digest: str

    def opening(self, *, interpreter: str | None, fallback: str | None, state: str | None) -> bytes:
        """The first bytes to send on a new connection.

        Args:
            interpreter: ``ansible_python_interpreter``: used alone when given.
            fallback: ``clusterddp_python``: used when the host's ``python3`` is missing or older than 3.8.
            state: ``clusterddp_state``.
        """
        program = (REMOTE / "system" / "bootstrap.py").read_bytes() + f"\nreceive_helper(i, {MAGIC_WORD!r})\n".encode()
        wanted = {"digest": self.digest, "size": len(self.code), "state": state}
        lines = f"{interpreter or ''}\n{fallback or ''}\n{len(program)}\n"
        return lines.encode() + program + json.dumps(wanted).encode() + b"\n"


@functools.cache
def bundle() -> Bundle:
    """The zipapp of ``clusterddp/remote``, with byte code where this Python keeps its own (`__pycache__`).

    A host with a Python of the same version need not compile what it imports, at each connection and for each process
    of a run; zipimport passes over byte code of another version and takes the source beside it.
    """
    members = _members()
    try:
        code = _with_byte_code(members)
    except (OSError, NotImplementedError):  # a folder of somebody else's; a Python that keeps no byte code
        code = _archive(members)
    return Bundle(code=code, digest=hashlib.sha256(code).hexdigest())


def _members() -> dict[str, bytes]:
    """What the zipapp holds, by name; the same for the same sources."""
    found = {"__main__.py": _ENTRY.encode()}
    found |= {f"{PACKAGE}-0.dist-info/{name}": text.encode() for name, text in _PLUGIN.items()}
    for path in sorted(REMOTE.rglob("*")):
        inside = path.relative_to(REMOTE)
        if path.is_file() and "__pycache__" not in inside.parts:
            found[f"{PACKAGE}/{inside.as_posix()}"] = path.read_bytes()
    return found


def _with_byte_code(members: Mapping[str, bytes]) -> bytes:
    """The archive with byte code, read from where it was kept or made and kept there, behind a digest of its sources.

    Raises:
        OSError: it cannot be kept: compiling all for every command would cost more than it saves.
        NotImplementedError: this Python keeps no byte code.
    """
    kept = Path(importlib.util.cache_from_source(str(REMOTE / "zipapp.py"))).with_suffix(".pyz")
    sources = hashlib.sha256(importlib.util.MAGIC_NUMBER)
    for name, data in members.items():
        sources.update(b"%s %d " % (name.encode(), len(data)) + data)
    with contextlib.suppress(FileNotFoundError):
        found = kept.read_bytes()
        if found.startswith(sources.digest()):
            return found[sources.digest_size :]
    if sys.dont_write_bytecode:
        return _archive(members)
    code = _archive({**members, **_byte_code(members)})
    kept.parent.mkdir(exist_ok=True)
    scratch = kept.with_suffix(f".{os.getpid()}.tmp")
    try:
        scratch.write_bytes(sources.digest() + code)
        scratch.replace(kept)
    finally:
        scratch.unlink(missing_ok=True)
    return code


def _byte_code(members: Mapping[str, bytes]) -> dict[str, bytes]:
    """`.pyc` files that are not compared with their sources, for the package's modules."""
    found = {}
    for name, data in members.items():
        if name.startswith(f"{PACKAGE}/") and name.endswith(".py"):
            code = compile(data, name, "exec", dont_inherit=True, optimize=2)  # without docstrings: a tenth less
            found[f"{name}c"] = importlib.util.MAGIC_NUMBER + struct.pack("<I8s", _UNCHECKED, b"") + marshal.dumps(code)
    return found


def _archive(members: Mapping[str, bytes]) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in members.items():
            entry = zipfile.ZipInfo(name)  # a fixed date: the digest tells the sources, not the build
            entry.compress_type = zipfile.ZIP_DEFLATED
            archive.writestr(entry, data)
    return buffer.getvalue()
