"""The remote code as one zipapp, and the first bytes of a connection that put it on a host.

Not here: opening the connection (connection.py) and speaking with the helper (hosts/client.py).
"""

from __future__ import annotations

import functools
import hashlib
import io
import json
import zipfile
from dataclasses import dataclass
from pathlib import Path

from clusterddp.remote.shared.frames import MAGIC, PROTOCOL
from clusterddp.remote.shared.plan import BACKEND

REMOTE = Path(__file__).parents[1] / "remote"
PACKAGE = "clusterddp_remote"  # the name of remote/ inside the zipapp
MAGIC_WORD = f"{MAGIC.decode()}{PROTOCOL}"
# What torch looks for in an agent that has the zipapp on its PYTHONPATH.
_PLUGIN = {
    "METADATA": f"Metadata-Version: 2.1\nName: {PACKAGE}\nVersion: 0\n",
    "entry_points.txt": f"[torchrun.handlers]\n{BACKEND} = {PACKAGE}.rendezvous:creator\n",
}
_ENTRY = f"import sys\nfrom {PACKAGE}.__main__ import main\nsys.exit(main())\n"

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
    """The zipapp of ``clusterddp/remote``, the same bytes for the same sources."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        _add(archive, "__main__.py", _ENTRY.encode())
        for name, text in _PLUGIN.items():
            _add(archive, f"{PACKAGE}-0.dist-info/{name}", text.encode())
        for path in sorted(REMOTE.rglob("*")):
            inside = path.relative_to(REMOTE)
            if path.is_file() and "__pycache__" not in inside.parts:
                _add(archive, f"{PACKAGE}/{inside.as_posix()}", path.read_bytes())
    code = buffer.getvalue()
    return Bundle(code=code, digest=hashlib.sha256(code).hexdigest())


def _add(archive: zipfile.ZipFile, name: str, data: bytes) -> None:
    entry = zipfile.ZipInfo(name)  # a fixed date: the digest tells the sources, not the build
    entry.compress_type = zipfile.ZIP_DEFLATED
    archive.writestr(entry, data)
