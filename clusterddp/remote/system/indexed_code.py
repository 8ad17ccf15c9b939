"""Our modules from a zipapp by an index of their byte code: a read, a digest and ``marshal`` each.

zipimport reads the whole directory of the archive first, and looks for four names in it a module. It stays for what
the index does not hold: sources, and other versions' Pythons.

It stands alone: the index carries its code, which runs before any of our modules can be imported.
"""

import marshal
import os
import sys

TYPE_CHECKING = False  # typing's own costs an import
if TYPE_CHECKING:
    from types import CodeType, ModuleType
    from typing import Any, Callable, Dict, Optional, Tuple

HEADER = 16  # bytes before the code in a .pyc file


class IndexedCode:
    """Finder and loader of the modules in an index.

    Args:
        path: The zipapp.
        index: Module → offset and size of its ``.pyc`` file in the zipapp, the sha256 of that, whether it is a package.
        sha256: Makes a digest.
    """

    def __init__(
        self, path: str, index: "Dict[str, Tuple[int, int, bytes, bool]]", sha256: "Callable[[bytes], Any]"
    ) -> None:
        self.path, self.index, self.sha256 = path, index, sha256

    def find_spec(self, name: str, _path: object = None, _target: object = None) -> "Any":
        """The spec of a module in the index."""
        if name not in self.index:
            return None
        place = "%s/%s" % (self.path, name.replace(".", "/"))
        is_package = self.index[name][3]
        made: "Any" = type(sys.__spec__)  # importlib.machinery.ModuleSpec, without its import
        spec = made(name, self, origin=place + ("/__init__.py" if is_package else ".py"))
        spec.has_location = True
        if is_package:
            spec.submodule_search_locations = [place]
        return spec

    def create_module(self, _spec: object) -> None:
        """Python's own way."""

    def exec_module(self, module: "ModuleType") -> None:
        """Run a module's code.

        Raises:
            ImportError: the file was changed after its index was read.
        """
        exec(self.get_code(module.__name__), module.__dict__)  # noqa: S102 - what an import is

    def get_code(self, name: str) -> "CodeType":
        """A module's code, as runpy asks for it too."""
        offset, size, digest, _ = self.index[name]
        handle = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC)  # each time: forked processes close what they find open
        try:
            data = os.pread(handle, size, offset)
        finally:
            os.close(handle)
        if self.sha256(data).digest() != digest:
            os.unlink(self.path)
            raise ImportError("%s was damaged, and is removed: the next connection brings it anew" % self.path)
        code: "CodeType" = marshal.loads(data[HEADER:])  # noqa: S302 - ours, by its digest
        return code

    def get_source(self, name: str) -> "Optional[str]":
        """A module's source, for tracebacks."""
        source: "Optional[str]" = self._archive().get_source(name)
        return source

    def get_data(self, path: str) -> bytes:
        """A file beside the modules."""
        data: bytes = self._archive().get_data(path)
        return data

    def _archive(self) -> "Any":
        import zipimport

        return zipimport.zipimporter(self.path)


def install(path: str, index: "Dict[str, Tuple[int, int, bytes, bool]]", sha256: "Callable[[bytes], Any]") -> None:
    """Import our modules by the index from now on, and from the zipapp what that lacks."""
    sys.meta_path.insert(0, IndexedCode(path, index, sha256))
    sys.path.insert(0, path)
