"""Import our modules from an open zipapp: byte code by its index (one read, one digest, ``marshal``), else sources.

Nothing is looked up by a path: the zipapp was checked to be ours when it was opened, and its path is only for messages.
It is not in sys.path either, so a standard module is never taken from it.

This module stands alone: its code is in the index and runs before any of our modules can be imported; and it is sent as
source to a host that has no byte code (bootstrap.py).
"""

import marshal
import os
import sys

TYPE_CHECKING = False  # typing's own costs an import
if TYPE_CHECKING:
    from types import CodeType, ModuleType
    from typing import Any, Callable, Dict, Optional, Tuple

    Index = Dict[str, Tuple[int, int, bytes, bool]]

HEADER = 16  # bytes before the code in a .pyc file
COMMENTS = (0, 80)  # bytes that an archive of ours may end with: no comment, or a trailer (shared/code/code_archive.py)


class IndexedCode:
    """Finder and loader of our modules, from an open zipapp.

    ``handle`` stays open for as long as this process lives, and in the processes it forks (system/descriptors.py).
    ``path`` is for messages and the modules' ``__file__``. ``index`` maps a module to offset and size of its ``.pyc``
    file in the zipapp, the sha256 of that, and whether it is a package; None where the zipapp has no byte code for this
    Python.
    """

    def __init__(self, handle: int, path: str, index: "Optional[Index]", sha256: "Callable[[bytes], Any]") -> None:
        self.handle, self.path, self.index, self.sha256 = handle, path, index, sha256
        self._members: "Dict[str, Tuple[int, int, int, int, int]]" = {}

    def find_spec(self, name: str, _path: object = None, _target: object = None) -> "Any":
        """The spec of a module of ours; None for any other."""
        is_package = self._is_package(name)
        if is_package is None:
            return None
        spec_class: "Any" = type(sys.__spec__)  # importlib.machinery.ModuleSpec, without its import
        base = "%s/%s" % (self.path, name.replace(".", "/"))
        spec = spec_class(name, self, origin=base + ("/__init__.py" if is_package else ".py"))
        spec.has_location = True
        if is_package:
            spec.submodule_search_locations = []  # no path: what is in it, we find
        return spec

    def create_module(self, _spec: object) -> None:
        """Return None: Python makes the module."""

    def exec_module(self, module: "ModuleType") -> None:
        """Run a module's code; raises ImportError where the file was changed after its index was read."""
        exec(self.get_code(module.__name__), module.__dict__)  # noqa: S102 - what an import is

    def get_code(self, name: str) -> "CodeType":
        """A module's code; runpy calls this too."""
        code: "CodeType"
        if self.index is None:
            source = self._member(self._file_of(name))
            code = compile(source, self._file_of(name), "exec", dont_inherit=True)
            return code
        offset, size, digest, _ = self.index[name]
        data = os.pread(self.handle, size, offset)
        if self.sha256(data).digest() != digest:
            self._remove_damaged()
        code = marshal.loads(data[HEADER:])  # noqa: S302 - ours, by its digest
        return code

    def get_source(self, name: str) -> "Optional[str]":
        """A module's source, for tracebacks."""
        return self._member(self._file_of(name)).decode()

    def get_data(self, path: str) -> bytes:
        """The content of a file in the zipapp; raises OSError where there is none."""
        name = path[len(self.path) + 1 :]
        if not path.startswith(self.path + "/") or name not in self._directory():
            raise FileNotFoundError(2, os.strerror(2), path)  # ENOENT
        return self._member(name)

    def _is_package(self, name: str) -> "Optional[bool]":
        """Whether a module is a package; None where there is no such module."""
        if self.index is not None:
            return self.index[name][3] if name in self.index else None
        base = name.replace(".", "/")
        found = [base + end in self._directory() for end in (".py", "/__init__.py")]
        return found[1] if any(found) else None

    def _file_of(self, name: str) -> str:
        return name.replace(".", "/") + ("/__init__.py" if self._is_package(name) else ".py")

    def _member(self, name: str) -> bytes:
        """The content of a file in the archive; raises ImportError where it is damaged."""
        import zlib

        method, checksum, stored, size, header = self._directory()[name]
        lengths = os.pread(self.handle, 4, header + 26)  # of what stands between the header and the data
        data = os.pread(self.handle, stored, header + 30 + _number(lengths, 0, 2) + _number(lengths, 2, 2))
        try:
            found = zlib.decompress(data, -15) if method else data
        except zlib.error:
            found = b""
        if zlib.crc32(found) != checksum or len(found) != size:
            self._remove_damaged()
        return found

    def _directory(self) -> "Dict[str, Tuple[int, int, int, int, int]]":
        """The archive's files: compression method, checksum, stored size, own size, offset of the header."""
        if self._members:
            return self._members
        length = os.fstat(self.handle).st_size
        for comment in COMMENTS:
            end = os.pread(self.handle, 22, max(0, length - 22 - comment))
            if end[:4] == b"PK\5\6" and _number(end, 20, 2) == comment:
                break
        else:
            self._remove_damaged()
        data, at = os.pread(self.handle, _number(end, 12, 4), _number(end, 16, 4)), 0
        while data[at : at + 4] == b"PK\1\2":
            name, more, comment = (_number(data, at + field, 2) for field in (28, 30, 32))
            sizes = tuple(_number(data, at + field, 4) for field in (16, 20, 24, 42))
            self._members[data[at + 46 : at + 46 + name].decode()] = (_number(data, at + 10, 2), *sizes)  # type: ignore[assignment]
            at += 46 + name + more + comment
        return self._members

    def _remove_damaged(self) -> None:
        """Remove the file, if its path still names it, and raise ImportError."""
        try:
            if os.path.samestat(os.stat(self.path), os.fstat(self.handle)):
                os.unlink(self.path)
        except OSError:  # removed, or replaced, by another
            pass
        raise ImportError("%s was damaged, and is removed: the next connection brings it anew" % self.path)


def _number(data: bytes, offset: int, size: int) -> int:
    return int.from_bytes(data[offset : offset + size], "little")


def install(handle: int, path: str, index: "Optional[Index]", sha256: "Callable[[bytes], Any]") -> None:
    """Import our modules from an open zipapp from now on."""
    sys.meta_path.insert(0, IndexedCode(handle, path, index, sha256))
