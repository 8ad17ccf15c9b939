"""Find the objects that kept the working folder's path during an import, so that the path can be replaced."""

import gc
from types import FrameType
from typing import Any, List, Tuple

from .fork_checks import RefusedError


class PathHolders:
    """The containers that kept the working folder's path while torch was imported."""

    def __init__(self) -> None:
        self.text = ""
        self.holders: List[Tuple[Any, Any]] = []

    def find(self, excluded: object, text: str) -> None:
        """Find every container that holds ``text``, except ``excluded``, among the objects that the collector tracks.

        Raises RefusedError if an object holds it in a way that cannot be replaced.
        """
        ignored = (excluded, vars(excluded), self, vars(self))
        for holder in gc.get_objects():
            if not _refers_to_text(holder, text):
                continue
            if isinstance(holder, FrameType) or any(holder is ignored_object for ignored_object in ignored):
                continue
            inside = holder if isinstance(holder, (dict, list)) else getattr(holder, "__dict__", None)
            names = _keys_with(inside, text)
            if not names:
                raise RefusedError("a %s remembers the working folder" % type(holder).__name__)
            self.holders += [(inside, name) for name in names]
        self.text = text

    def replace(self, folder: str) -> None:
        """Replace the path by another folder's in every container found."""
        for inside, name in self.holders:
            inside[name] = inside[name].replace(self.text, folder)


def _refers_to_text(holder: object, text: str) -> bool:
    found = False
    for one in gc.get_referents(holder):  # a loop: a generator expression's cell would hold it too
        found = found or (type(one) is str and text in one)
    return found


def _keys_with(inside: Any, text: str) -> List[Any]:
    if isinstance(inside, dict):
        return [name for name, value in inside.items() if type(value) is str and text in value]
    if isinstance(inside, list):
        return [at for at, value in enumerate(inside) if type(value) is str and text in value]
    return []
