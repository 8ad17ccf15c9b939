"""Checked reading of JSON from another machine or a file: one field at a time, by exact type and range.

    fields = Fields(parse_json(data))
    Thing(name=fields.check("name", NAME.fullmatch, "a name"), port=fields.number("port", 65535))

Whatever the value, reading returns a checked value or raises one error.
"""

from typing import Any, Callable, Container, Dict, List, Optional, Tuple, TypeVar

T = TypeVar("T")

MAX_LENGTH = 4096  # items of a list, characters of a text; no genuine value is longer


class DamagedError(ValueError):
    """A field has a wrong value; the message names the field, what was expected, and the value."""


def is_shown_path(text: str) -> bool:
    """Whether a text is an absolute path of printable characters, so that no escape sequence reaches a terminal."""
    return text.startswith("/") and text.isprintable()


class Fields:
    """Typed access to one JSON object.

    ``prefix`` is put before field names in errors, such as ``torch.``; ``error`` makes the exception to raise from
    one line of text; ``most`` is the longest list (items) and text (characters) to accept.
    """

    def __init__(
        self, data: Any, prefix: str = "", error: Callable[[str], Exception] = DamagedError, most: int = MAX_LENGTH
    ) -> None:
        self.prefix, self._error, self._most = prefix, error, most
        if type(data) is not dict:
            raise self.wrong("", data, "an object")
        self._data: Dict[str, Any] = data

    def there(self, name: str) -> bool:
        """Whether a field is present, even as null."""
        return name in self._data

    def given(self, name: str) -> bool:
        """Whether a field is present and not null."""
        return self._data.get(name) is not None

    def text(self, name: str) -> str:
        """Read a text."""
        value = self._data.get(name)
        if not isinstance(value, str) or len(value) > self._most or "\0" in value:
            raise self.wrong(name, value, "a text")
        return value

    def any_text(self, name: str) -> str:
        """Read a text of any length, of any characters."""
        value = self._data.get(name)
        if not isinstance(value, str):
            raise self.wrong(name, value, "a text")
        return value

    def maybe_text(self, name: str) -> Optional[str]:
        """Read a text, or None."""
        return self.text(name) if self.given(name) else None

    def shown_path(self, name: str) -> str:
        """Read an absolute path of printable characters."""
        return self.check(name, is_shown_path, "an absolute path")

    def maybe_path(self, name: str) -> Optional[str]:
        """Read an absolute path of printable characters, or None."""
        return None if self.maybe_text(name) is None else self.shown_path(name)

    def filename(self, name: str) -> str:
        """Read a text that can name a file in a folder."""
        value = self.text(name)
        if not value or "/" in value or value in (".", ".."):
            raise self.wrong(name, value, "a file's name")
        return value

    def number(self, name: str, most: int = (1 << 63) - 1) -> int:
        """Read a whole number from 0 to ``most``."""
        value = self._data.get(name)
        if type(value) is not int or not 0 <= value <= most:
            raise self.wrong(name, value, "a whole number up to %d" % most)
        return value

    def maybe_number(self, name: str) -> Optional[int]:
        """Read a whole number from 0, or None."""
        return self.number(name) if self.given(name) else None

    def integer(self, name: str) -> int:
        """Read a signed 64-bit integer."""
        value = self._data.get(name)
        if type(value) is not int or not -1 << 63 <= value < 1 << 63:
            raise self.wrong(name, value, "a whole number of 64 bits")
        return value

    def maybe_integer(self, name: str) -> Optional[int]:
        """Read a signed 64-bit integer, or None."""
        return self.integer(name) if self.given(name) else None

    def real(self, name: str) -> float:
        """Read a number from 0."""
        value = self._data.get(name)
        if not isinstance(value, (int, float)) or isinstance(value, bool) or not 0 <= value <= 1 << 63:
            raise self.wrong(name, value, "a number from 0")
        return float(value)

    def maybe_real(self, name: str) -> Optional[float]:
        """Read a number from 0, or None."""
        return self.real(name) if self.given(name) else None

    def flag(self, name: str) -> bool:
        """Read a boolean."""
        value = self._data.get(name)
        if not isinstance(value, bool):
            raise self.wrong(name, value, "true or false")
        return value

    def anything(self, name: str) -> Any:
        """Return a value of any type, unchecked; None where there is none."""
        return self._data.get(name)

    def raw(self, name: str) -> Dict[str, Any]:
        """Read a JSON object without checking its content."""
        value = self._data.get(name)
        if type(value) is not dict:
            raise self.wrong(name, value, "an object")
        return value

    def array(self, name: str) -> List[Any]:
        """Read a JSON list without checking its items."""
        value = self._data.get(name)
        if type(value) is not list or len(value) > self._most:
            raise self.wrong(name, value, "a list")
        return value

    def long_list(self, name: str) -> List[Any]:
        """Read a JSON list of any length without checking its items: the sender's bytes were limited before."""
        value = self._data.get(name)
        if type(value) is not list:
            raise self.wrong(name, value, "a list")
        return value

    def long_texts(self, name: str) -> List[str]:
        """Read a list of texts, of any length; all are checked at once, for being texts alone."""
        value = self.long_list(name)
        if {*map(type, value)} - {str}:
            raise self.wrong(name, value, "a list of texts")
        return value

    def part(self, name: str) -> "Fields":
        """Return a nested object as ``Fields``."""
        return self._inside(name, self.raw(name))

    def rest(self, known: Container[str]) -> Dict[str, Any]:
        """Return the fields that are not ``known``: a newer version wrote them."""
        return {name: value for name, value in self._data.items() if name not in known}

    def pair(self, name: str) -> Tuple[int, int]:
        """Read two whole numbers."""
        numbers = self.numbers(name)
        if len(numbers) != 2:
            raise self.wrong(name, numbers, "two whole numbers")
        return numbers[0], numbers[1]

    def pairs(self, name: str) -> Tuple[Tuple[int, int], ...]:
        """Read a list of pairs of whole numbers."""
        return self.items(name, lambda one: one.pair("item"))

    def text_pairs(self, name: str) -> Tuple[Tuple[str, str], ...]:
        """Read a list of pairs of texts."""
        return self.items(name, lambda one: one.text_pair("item"))

    def text_pair(self, name: str) -> Tuple[str, str]:
        """Read two texts."""
        texts = self.texts(name)
        if len(texts) != 2:
            raise self.wrong(name, texts, "two texts")
        return texts[0], texts[1]

    def numbers(self, name: str) -> Tuple[int, ...]:
        """Read a list of whole numbers."""
        return self.items(name, lambda one: one.number("item"))

    def texts(self, name: str) -> Tuple[str, ...]:
        """Read a list of texts."""
        return self.items(name, lambda one: one.text("item"))

    def each(self, name: str, read: Callable[["Fields"], T]) -> Tuple[T, ...]:
        """Read a list of objects with ``read``."""
        return self.items(name, lambda one: read(one.part("item")))

    def mapping(self, name: str, read: Callable[["Fields", str], T]) -> Dict[str, T]:
        """Read an object of any keys; ``read`` gets its fields and one key at a time."""
        value = self._data.get(name)
        if not isinstance(value, dict) or len(value) > self._most:
            raise self.wrong(name, value, "an object")
        inner = self.part(name)
        return {str(key): read(inner, key) for key in value}

    def check(self, name: str, is_valid: Callable[[str], object], what: str) -> str:
        """Read a text for which ``is_valid`` returns something true and raises no ValueError."""
        value = self.text(name)
        try:
            if is_valid(value):
                return value
        except ValueError:
            pass  # refused like a false result
        raise self.wrong(name, value, what)

    def items(self, name: str, read: Callable[["Fields"], T], count: Optional[int] = None) -> Tuple[T, ...]:
        """Read a list (of ``count`` items); ``read`` is called with ``Fields({"item": item})`` for each."""
        value = self.array(name)
        if count is not None and len(value) != count:
            raise self.wrong(name, value, "a list of %d" % count)
        return tuple(read(self._inside(name, {"item": item})) for item in value)

    def _inside(self, name: str, data: Any) -> "Fields":
        return Fields(data, "%s%s." % (self.prefix, name), self._error, self._most)

    def wrong(self, name: str, value: Any, wanted: str) -> Exception:
        """Make the error for a field with a wrong value."""
        where = "%s%s" % (self.prefix, name or "answer")
        if name and name not in self._data:
            return self._error("%s is not there; it must be %s" % (where, wanted))
        return self._error("%s is not %s: %r" % (where, wanted, str(value)[:80]))
