"""Checked reading of JSON from another machine or a file: one field at a time, by exact type and range.

    fields = Fields(parse_json(data))
    Thing(name=fields.check("name", NAME.fullmatch, "a name"), port=fields.number("port", 65535))

Whatever the value, reading gives what it says or raises one error.
"""

from typing import Any, Callable, Container, Dict, List, Optional, Tuple, TypeVar

T = TypeVar("T")

MOST = 4096  # items of a list, characters of a text; more is no fact


class DamagedError(ValueError):
    """A field is not what it must be: which, what was wanted, what stands there."""


class Fields:
    """Typed access to one JSON object.

    Args:
        data: The object.
        place: Where it stands, for errors: ``torch.``.
        error: What is raised, made from one line of text.
        most: Items of a list, characters of a text.
    """

    def __init__(
        self, data: Any, place: str = "", error: Callable[[str], Exception] = DamagedError, most: int = MOST
    ) -> None:
        self.place, self._error, self._most = place, error, most
        if type(data) is not dict:
            raise self.wrong("", data, "an object")
        self._data: Dict[str, Any] = data

    def there(self, name: str) -> bool:
        """Whether a field is there, null or not."""
        return name in self._data

    def given(self, name: str) -> bool:
        """Whether a field is there and not null."""
        return self._data.get(name) is not None

    def text(self, name: str) -> str:
        """A text."""
        value = self._data.get(name)
        if not isinstance(value, str) or len(value) > self._most or "\0" in value:
            raise self.wrong(name, value, "a text")
        return value

    def maybe_text(self, name: str) -> Optional[str]:
        """A text, or None."""
        return self.text(name) if self.given(name) else None

    def maybe_path(self, name: str) -> Optional[str]:
        """An absolute path, or None."""
        value = self.maybe_text(name)
        if value is not None and (not value.startswith("/") or "\n" in value):
            raise self.wrong(name, value, "an absolute path")
        return value

    def filename(self, name: str) -> str:
        """A text that can name a file in a folder."""
        value = self.text(name)
        if not value or "/" in value or value in (".", ".."):
            raise self.wrong(name, value, "a file's name")
        return value

    def number(self, name: str, most: int = (1 << 63) - 1) -> int:
        """A whole number, at most ``most``."""
        value = self._data.get(name)
        if type(value) is not int or not 0 <= value <= most:
            raise self.wrong(name, value, "a whole number up to %d" % most)
        return value

    def maybe_number(self, name: str) -> Optional[int]:
        """A whole number, or None."""
        return self.number(name) if self.given(name) else None

    def integer(self, name: str) -> int:
        """A whole number of 64 bits, which may be negative."""
        value = self._data.get(name)
        if type(value) is not int or not -1 << 63 <= value < 1 << 63:
            raise self.wrong(name, value, "a whole number of 64 bits")
        return value

    def maybe_integer(self, name: str) -> Optional[int]:
        """A whole number of 64 bits, or None."""
        return self.integer(name) if self.given(name) else None

    def real(self, name: str) -> float:
        """A number from 0."""
        value = self._data.get(name)
        if not isinstance(value, (int, float)) or isinstance(value, bool) or not 0 <= value <= 1 << 63:
            raise self.wrong(name, value, "a number from 0")
        return float(value)

    def maybe_real(self, name: str) -> Optional[float]:
        """A number from 0, or None."""
        return self.real(name) if self.given(name) else None

    def flag(self, name: str) -> bool:
        """True or false."""
        value = self._data.get(name)
        if not isinstance(value, bool):
            raise self.wrong(name, value, "true or false")
        return value

    def raw(self, name: str) -> Dict[str, Any]:
        """A JSON object as it is."""
        value = self._data.get(name)
        if type(value) is not dict:
            raise self.wrong(name, value, "an object")
        return value

    def array(self, name: str) -> List[Any]:
        """A JSON list as it is."""
        value = self._data.get(name)
        if type(value) is not list or len(value) > self._most:
            raise self.wrong(name, value, "a list")
        return value

    def part(self, name: str) -> "Fields":
        """An object inside."""
        return self._inside(name, self.raw(name))

    def rest(self, known: Container[str]) -> Dict[str, Any]:
        """The fields that are not ``known``: a newer version's."""
        return {name: value for name, value in self._data.items() if name not in known}

    def pair(self, name: str) -> Tuple[int, int]:
        """Two whole numbers."""
        numbers = self.numbers(name)
        if len(numbers) != 2:
            raise self.wrong(name, numbers, "two whole numbers")
        return numbers[0], numbers[1]

    def pairs(self, name: str) -> Tuple[Tuple[int, int], ...]:
        """A list of pairs of whole numbers."""
        return self.items(name, lambda one: one.pair("item"))

    def maybe_numbers(self, name: str, count: int) -> Tuple[Optional[int], ...]:
        """A list of so many whole numbers, each of which may be null."""
        found = self.items(name, lambda one: one.maybe_number("item"))
        if len(found) != count:
            raise self.wrong(name, found, "%d whole numbers" % count)
        return found

    def numbers(self, name: str) -> Tuple[int, ...]:
        """A list of whole numbers."""
        return self.items(name, lambda one: one.number("item"))

    def texts(self, name: str) -> Tuple[str, ...]:
        """A list of texts."""
        return self.items(name, lambda one: one.text("item"))

    def each(self, name: str, read: Callable[["Fields"], T]) -> Tuple[T, ...]:
        """Every object of a list, read."""
        return self.items(name, lambda one: read(one.part("item")))

    def mapping(self, name: str, read: Callable[["Fields", str], T]) -> Dict[str, T]:
        """Every value of an object, read by its key."""
        value = self._data.get(name)
        if not isinstance(value, dict) or len(value) > self._most:
            raise self.wrong(name, value, "an object")
        inner = self.part(name)
        return {str(key): read(inner, key) for key in value}

    def check(self, name: str, meant: Callable[[str], object], what: str) -> str:
        """A text for which ``meant`` gives something true and raises no ValueError."""
        value = self.text(name)
        try:
            if meant(value):
                return value
        except ValueError:
            pass  # as wrong as what gives nothing true
        raise self.wrong(name, value, what)

    def items(self, name: str, read: Callable[["Fields"], T], count: Optional[int] = None) -> Tuple[T, ...]:
        """A list (of so many), whose items ``read`` takes from a field ``item`` each."""
        value = self.array(name)
        if count is not None and len(value) != count:
            raise self.wrong(name, value, "a list of %d" % count)
        return tuple(read(self._inside(name, {"item": item})) for item in value)

    def _inside(self, name: str, data: Any) -> "Fields":
        return Fields(data, "%s%s." % (self.place, name), self._error, self._most)

    def wrong(self, name: str, value: Any, wanted: str) -> Exception:
        """The error for a field that is not what is wanted."""
        where = "%s%s" % (self.place, name or "answer")
        if name and name not in self._data:
            return self._error("%s is not there; it must be %s" % (where, wanted))
        return self._error("%s is not %s: %r" % (where, wanted, str(value)[:80]))
