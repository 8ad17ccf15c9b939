"""A connection's first code: finds the helper's code that is on this host already, and runs it.

It stands alone and is sent as source with every connection, so it is short and imports next to nothing: compiling and
importing is what a short command costs a host most. What it does not find as it was sent, or cannot use because this
Python has other byte code, ``bootstrap.py`` brings, which the operator sends when told so.
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
            offset, size, sha256 in hex.
    """
    state = bytes.fromhex(stream.readline().decode()).decode()
    number, offset, size, wanted = index
    own = sys.modules["_frozen_importlib_external"].MAGIC_NUMBER  # importlib.util's, without its import
    places = [state, state + "/clusterddp-%d" % os.getuid()]
    if not state:
        places = ["/var/tmp/clusterddp-%d" % os.getuid(), os.environ.get("HOME", "") + "/.clusterddp"]  # noqa: S108 - see _is_the_helpers
    for place in places if number == own else ():
        path = os.path.expanduser(place) + "/helper/" + digest + ".pyz"
        try:
            handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError:  # not here
            continue
        text = os.pread(handle, size, offset)
        sha256 = _sha256()
        if sha256(text).hexdigest() == wanted:
            import marshal

            program, modules = marshal.loads(text)  # noqa: S302 - the operator's, by its digest
            names: "Dict[str, Any]" = {"__name__": "indexed_code"}
            exec(program, names)  # noqa: S102 - the same
            names["install"](path, modules, sha256)
            boot = __import__("clusterddp_remote.system.bootstrap", fromlist=["run_helper"])
            boot.run_helper(handle, digest, state, magic)
        os.close(handle)
    os.write(1, (magic + " unknown\n").encode())
    exec(stream.read(int(stream.readline())), globals())  # noqa: S102 - what the operator sends


def _sha256() -> "Callable[[bytes], Any]":
    """The built-in sha256: hashlib loads OpenSSL, which takes longer than our few kilobytes do."""
    try:
        found: "Callable[[bytes], Any]" = __import__("_sha2" if sys.version_info >= (3, 12) else "_sha256").sha256
    except ImportError:
        found = __import__("hashlib").sha256
    return found
