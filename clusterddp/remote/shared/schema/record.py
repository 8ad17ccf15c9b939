"""Records: named tuples that travel and lie on disks as JSON objects, read by a table of their fields' readers.

A record's field that has a default may be missing in the object: an older version wrote it. Fields that are not known
are a newer version's: they stay, in ``more``, and are written back.
"""

from typing import Any, Callable, Dict, Mapping, TypeVar

from ..wire.frames import parse_json
from .fields import Fields

T = TypeVar("T")
Reader = Callable[[Fields, str], Any]  # (the fields, a name) → its value: a method of Fields, or one made below
Readers = Mapping[str, Reader]

MOST = 1 << 20  # items of a list, characters of a text: a command line may be long


def read_record(kind: Callable[..., T], readers: Readers, data: Any, place: str) -> T:
    """A record from its JSON object.

    Args:
        kind: The named tuple.
        readers: How each of its fields is read.
        data: The object.
        place: What it is called in errors.

    Raises:
        DamagedError: a field is missing or wrong.
    """
    return record_in(Fields(data, place + ".", most=MOST), kind, readers)


def record_in(fields: Fields, kind: Callable[..., T], readers: Readers) -> T:
    """A record from its fields."""
    defaults: Mapping[str, Any] = kind._field_defaults  # type: ignore[attr-defined]
    found = {name: read(fields, name) for name, read in readers.items() if fields.there(name) or name not in defaults}
    for name, value in found.items():
        if value is None and not fields.there(name):
            raise fields.wrong(name, None, "given, or null")
    if "more" in defaults:
        found["more"] = fields.rest(readers)
    return kind(**found)


def record(kind: Callable[..., Any], readers: Readers) -> Reader:
    """The reader of a field that holds a record."""
    return lambda fields, name: record_in(fields.part(name), kind, readers)


def records(kind: Callable[..., Any], readers: Readers) -> Reader:
    """The reader of a field that holds a list of records."""
    return lambda fields, name: fields.each(name, lambda one: record_in(one, kind, readers))


def maybe(read: Reader) -> Reader:
    """The reader of a field that may be null."""
    return lambda fields, name: read(fields, name) if fields.given(name) else None


def parsed(data: bytes, read: Callable[[Any], T]) -> T:
    """The record in a file's bytes.

    Raises:
        ValueError: they are no JSON, or no such record; nothing else.
    """
    return read(parse_json(data))


def written(value: Any) -> Dict[str, Any]:
    """A record as a JSON object."""
    known: Dict[str, Any] = value._asdict()
    more = known.pop("more", {})
    return dict(more, **{name: _plain(field) for name, field in known.items()})


def _plain(value: Any) -> Any:
    if hasattr(value, "_asdict"):
        return written(value)
    if isinstance(value, dict):
        return {name: _plain(item) for name, item in value.items()}
    return [_plain(item) for item in value] if isinstance(value, (list, tuple)) else value
