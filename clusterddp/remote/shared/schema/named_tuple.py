"""What ``typing.NamedTuple`` is in the byte code that hosts run (code/byte_code.py).

It behaves like what ``collections.namedtuple`` makes. But ``__new__`` is compiled with the class, and nothing is
imported: importing ``collections``, and compiling for each class, would cost a short command some milliseconds a host.
"""

from typing import TYPE_CHECKING, Any, Callable, Dict, Iterable, Mapping, Optional, Tuple

if TYPE_CHECKING:
    _tuplegetter: Optional[Callable[[int, str], Any]] = None
else:
    try:
        from _collections import _tuplegetter
    except ImportError:  # another Python than CPython
        _tuplegetter = None

new_tuple: Any = tuple.__new__


def field_at(place: int) -> Any:
    """Return a descriptor that reads the item at index `place` of a tuple."""
    return _tuplegetter(place, "") if _tuplegetter else property(lambda values: tuple.__getitem__(values, place))


class NamedTuple(tuple):  # type: ignore[type-arg]
    """The base of all; a subclass has ``_fields``, a ``__new__`` that takes them, and an attribute for each."""

    __slots__ = ()
    _fields: Tuple[str, ...] = ()
    _field_defaults: Mapping[str, Any] = {}

    def __init_subclass__(cls) -> None:
        """Note the defaults of ``__new__``."""
        defaults = cls.__new__.__defaults__ or ()
        cls._field_defaults = dict(zip(cls._fields[len(cls._fields) - len(defaults) :], defaults))

    @classmethod
    def _make(cls, values: Iterable[Any]) -> "NamedTuple":
        made: NamedTuple = new_tuple(cls, values)
        if len(made) != len(cls._fields):
            raise TypeError("%s takes %d values, not %d" % (cls.__name__, len(cls._fields), len(made)))
        return made

    def _replace(self, **changed: Any) -> "NamedTuple":
        made = self._make(map(changed.pop, self._fields, self))
        if changed:
            raise ValueError("%s has no fields %s" % (type(self).__name__, sorted(changed)))
        return made

    def _asdict(self) -> Dict[str, Any]:
        return dict(zip(self._fields, self))

    def __repr__(self) -> str:
        return "%s(%s)" % (type(self).__name__, ", ".join(map("%s=%r".__mod__, zip(self._fields, self))))

    def __getnewargs__(self) -> Tuple[Any, ...]:
        return tuple(self)
