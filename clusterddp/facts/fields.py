"""Checked reading of what a host answered: one field at a time, by type and range."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from clusterddp.errors import HelperError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import TypeVar

    T = TypeVar("T")

MOST = 4096  # items of a list, characters of a text; more is no fact


class Fields:
    """Typed access to one JSON object of a host."""

    def __init__(self, host: str, data: Any, place: str = "") -> None:
        self._host, self._place = host, place
        if not isinstance(data, dict):
            raise self._wrong("", data, "an object")
        self._data: Mapping[str, Any] = data

    def given(self, name: str) -> bool:
        """Whether a field is there and not null."""
        return self._data.get(name) is not None

    def text(self, name: str) -> str:
        """A text."""
        value = self._data.get(name)
        if not isinstance(value, str) or len(value) > MOST or "\0" in value:
            raise self._wrong(name, value, "a text")
        return value

    def maybe_text(self, name: str) -> str | None:
        """A text, or None."""
        return self.text(name) if self.given(name) else None

    def maybe_path(self, name: str) -> str | None:
        """An absolute path, or None."""
        value = self.maybe_text(name)
        if value is not None and (not value.startswith("/") or "\n" in value):
            raise self._wrong(name, value, "an absolute path")
        return value

    def number(self, name: str, most: int = (1 << 63) - 1) -> int:
        """A whole number, at most ``most``."""
        value = self._data.get(name)
        if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= most:
            raise self._wrong(name, value, f"a whole number up to {most}")
        return value

    def maybe_number(self, name: str) -> int | None:
        """A whole number, or None."""
        return self.number(name) if self.given(name) else None

    def flag(self, name: str) -> bool:
        """True or false."""
        value = self._data.get(name)
        if not isinstance(value, bool):
            raise self._wrong(name, value, "true or false")
        return value

    def part(self, name: str) -> Fields:
        """An object inside."""
        return Fields(self._host, self._data.get(name), f"{self._place}{name}.")

    def pair(self, name: str) -> tuple[int, int]:
        """Two whole numbers."""
        numbers = self.numbers(name)
        if len(numbers) != 2:
            raise self._wrong(name, numbers, "two whole numbers")
        return numbers[0], numbers[1]

    def pairs(self, name: str) -> tuple[tuple[int, int], ...]:
        """A list of pairs of whole numbers."""
        return self._items(name, lambda one: one.pair("item"))

    def maybe_numbers(self, name: str, count: int) -> tuple[int | None, ...]:
        """A list of so many whole numbers, each of which may be null."""
        found = self._items(name, lambda one: one.maybe_number("item"))
        if len(found) != count:
            raise self._wrong(name, found, f"{count} whole numbers")
        return found

    def numbers(self, name: str) -> tuple[int, ...]:
        """A list of whole numbers."""
        return self._items(name, lambda one: one.number("item"))

    def texts(self, name: str) -> tuple[str, ...]:
        """A list of texts."""
        return self._items(name, lambda one: one.text("item"))

    def each(self, name: str, read: Callable[[Fields], T]) -> tuple[T, ...]:
        """Every object of a list, read."""
        return self._items(name, lambda one: read(one.part("item")))

    def mapping(self, name: str, read: Callable[[Fields, str], T]) -> dict[str, T]:
        """Every value of an object, read by its key."""
        value = self._data.get(name)
        if not isinstance(value, dict) or len(value) > MOST:
            raise self._wrong(name, value, "an object")
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
        raise self._wrong(name, value, what)

    def _items(self, name: str, read: Callable[[Fields], T]) -> tuple[T, ...]:
        value = self._data.get(name)
        if not isinstance(value, list) or len(value) > MOST:
            raise self._wrong(name, value, "a list")
        return tuple(read(Fields(self._host, {"item": item}, f"{self._place}{name}.")) for item in value)

    def _wrong(self, name: str, value: Any, wanted: str) -> HelperError:
        return HelperError(
            self._host, f"its facts are damaged: {self._place}{name or 'answer'} is not {wanted}: {str(value)[:80]!r}"
        )
