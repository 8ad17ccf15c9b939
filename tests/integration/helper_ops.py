"""Operations that only tests ask for; they travel to the real helper inside its zipapp (see ``real_helper``).

Runs as ``clusterddp_remote.helper_ops``, on the host's side.
"""

from __future__ import annotations

import hashlib
import os
import signal
import sys
import threading
import time
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from clusterddp.remote.helper.request import Request


def echo(request: Request) -> Any:
    """What it was given: arguments, and the operator's data as its size and digest."""
    digest, size = hashlib.sha256(), 0
    for piece in iter(request.read, b""):
        digest.update(piece)
        size += len(piece)
    return {"args": request.args, "size": size, "sha256": digest.hexdigest(), "pid": os.getpid()}


def early(request: Request) -> Any:
    """Answers with much before the operator's data is complete."""
    first = request.read()
    return {"first": len(first), "much": "x" * int(request.args["much"])}


def flood(request: Request) -> Any:
    """Sends so many bytes in full frames; writes into a file how many it could."""
    from clusterddp_remote.system.bootstrap import write_private  # type: ignore[import-not-found]  # noqa: PLC0415

    left, sent, note = int(request.args["bytes"]), 0, request.args.get("note")
    while left > 0:
        piece = min(left, 60 * 1024)
        request.send(b"x" * piece)
        left, sent = left - piece, sent + piece
        if note:
            write_private(note, str(sent).encode())
    return {"sent": sent}


def hold(request: Request) -> Any:
    """Says its pid and its child's, then never ends."""
    from clusterddp_remote.system.prctl import set_pdeathsig  # type: ignore[import-not-found]  # noqa: PLC0415

    ready, tell = os.pipe()
    child = os.fork()
    if not child:
        set_pdeathsig(signal.SIGKILL)
        os.write(tell, b"!")
        threading.Event().wait(600)
    os.read(ready, 1)
    request.send(b"", pid=os.getpid(), child=child)
    threading.Event().wait(600)


def work(request: Request) -> Any:
    """Busy for some seconds."""
    end = time.monotonic() + float(request.args["seconds"])
    while time.monotonic() < end:
        pass
    return "done"


def refuse(request: Request) -> Any:
    """An expected failure."""
    from clusterddp_remote.system.bootstrap import Refused  # noqa: PLC0415

    raise Refused("the disk is full", request.args.get("remedy", "make room"))


def fail(_request: Request) -> Any:
    """An unexpected one, with a message that no frame would hold."""
    raise ValueError("\U0001f525" * 100_000)


def broken(_request: Request) -> Any:
    """A pipe of its own breaks; that is no end of the connection."""
    raise BrokenPipeError("a pipe of its own")


def die(_request: Request) -> Any:
    """Killed in the middle."""
    os.kill(os.getpid(), signal.SIGKILL)


CHANGES = ("pwrite", "write", "rename", "unlink", "mkdir", "rmdir", "link", "symlink", "chmod", "ftruncate", "utime")


def killed(request: Request) -> Any:
    """The operation ``op``, killed at its change of a disk number ``at``; of a write the first half is done."""
    from clusterddp_remote.helper.operations import find  # type: ignore[import-not-found]  # noqa: PLC0415

    left = [int(request.args.pop("at"))]

    def counted(name: str, real: Any) -> Any:
        def call(*args: Any, **options: Any) -> Any:
            left[0] -= 1
            if not left[0]:
                if name == "pwrite":
                    real(args[0], bytes(args[1])[: len(args[1]) // 2], args[2])
                os.kill(os.getpid(), signal.SIGKILL)
            return real(*args, **options)

        return call

    for name in CHANGES:
        setattr(os, name, counted(name, getattr(os, name)))
    return find(request.args.pop("op"))(request)


def prints(_request: Request) -> Any:
    """Stray output on both streams, and reads of stdin."""
    print("stray", flush=True)
    os.write(1, b"stray\n")
    return {"stdin": sys.stdin.read()}


class Table(dict[str, str]):
    """The operations; looking for ``burst`` among them is a bug of the helper itself."""

    def __contains__(self, name: object) -> bool:
        if name == "burst":
            raise RuntimeError("the helper bursts")
        return super().__contains__(name)


TABLE = {
    name: f"helper_ops:{name}"
    for name in ("echo", "early", "flood", "hold", "work", "refuse", "fail", "broken", "die", "prints", "killed")
}
