"""A connection's first code: finds the helper's code that is on this host already, and runs it.

It stands alone and is sent as source with every connection, so it is short and imports next to nothing: compiling and
importing is what a short command costs a host most. Where this Python has other byte code it looks for what the host
has made of the code for it (helper/own_code.py). What it does not find, ``bootstrap.py`` brings, which the operator
sends when told so.
"""

import os
import sys

TYPE_CHECKING = False  # typing's own costs an import
if TYPE_CHECKING:
    from typing import Any, BinaryIO, Callable, Dict, Tuple


def find_code(stream: "BinaryIO", magic: str, digest: str, index: "Tuple[bytes, int, int, str]") -> None:
    """Run the helper from its zipapp in the state folder, else say ``<magic> unknown`` and run what is sent then.

    Args:
        stream: The connection; ``clusterddp_state`` stands on its next line, in hex.
        magic: The word before our answer.
        digest: The zipapp's, which is its name.
        index: Where its index of byte code is (system/indexed_code.py): the magic number of the Python it is for,
            offset, size, sha256 in hex. No number where no byte code is wanted.
    """
    state = bytes.fromhex(stream.readline().decode()).decode()
    own = sys.modules["_frozen_importlib_external"].MAGIC_NUMBER  # importlib.util's, without its import
    places = [state, state + "/clusterddp-%d" % os.getuid()]
    if not state:
        places = ["/var/tmp/clusterddp-%d" % os.getuid(), os.environ.get("HOME", "") + "/.clusterddp"]  # noqa: S108 - see _is_the_helpers
    name = digest if index[0] == own else "%s-%s" % (digest, own.hex())
    for place in places if index[0] else ():
        folder = os.path.expanduser(place) + "/helper"
        path = folder + "/" + name + ".pyz"
        try:
            handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            offset, size, wanted = index[1:] if name == digest else _own_index(folder, handle)
            text = os.pread(handle, size, offset)
        except OSError:  # not here, or damaged
            continue
        sha256 = _sha256()
        if sha256(text).hexdigest() == wanted:
            import marshal

            program, modules = marshal.loads(text)  # noqa: S302 - the operator's, by its digest
            names: "Dict[str, Any]" = {"__name__": "indexed_code"}
            exec(program, names)  # noqa: S102 - the same
            names["install"](path, modules, sha256)
            boot = __import__("clusterddp_remote.system.bootstrap", fromlist=["run_helper"])
            boot.run_helper(handle, name, state, magic)
            del sys.meta_path[0], sys.path[0]  # by install
            for module in [one for one in sys.modules if one.startswith("clusterddp_remote")]:
                del sys.modules[module]
        os.close(handle)
    os.write(1, (magic + " unknown\n").encode())
    exec(stream.read(int(stream.readline())), globals())  # noqa: S102 - what the operator sends


def _own_index(folder: str, handle: int) -> "Tuple[int, int, str]":
    """Offset, size and sha256 of the index in a zipapp that this host has made: its trailer (shared/code_archive.py).

    Raises:
        OSError: somebody else may have written it, so its word does not count; or it is damaged.
    """
    around, info = os.lstat(folder), os.fstat(handle)
    if around.st_mode & 0o170077 != 0o40000 or {around.st_uid, info.st_uid} != {os.getuid()} or info.st_mode & 0o22:
        raise OSError
    trailer = os.pread(handle, 80, info.st_size - 80)
    offset, size = int.from_bytes(trailer[:8], "big"), int.from_bytes(trailer[8:16], "big")
    if offset + size > info.st_size:
        raise OSError
    return offset, size, trailer[16:48].hex()


def _sha256() -> "Callable[[bytes], Any]":
    """The built-in sha256: hashlib loads OpenSSL, which takes longer than our few kilobytes do."""
    try:
        found: "Callable[[bytes], Any]" = __import__("_sha2" if sys.version_info >= (3, 12) else "_sha256").sha256
    except ImportError:
        found = __import__("hashlib").sha256
    return found
