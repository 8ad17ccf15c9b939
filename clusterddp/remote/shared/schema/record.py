"""Records: named tuples that travel and lie on disks as JSON objects, declared once: each field with its reader.

    @record
    class Thing(NamedTuple):
        name: str = field(Fields.text)
        ports: Tuple[int, ...] = field(Fields.numbers, default=())
        more: Mapping[str, Any] = {}

    read_record(Thing, data, "thing")

A field that has a default may be missing in the object: an older version wrote it. Fields that are not known are a
newer version's: a record with ``more`` keeps them there, and they are written back.

On hosts the byte code has no annotations (code/byte_code.py), so a field's reader is its value. Type checkers hold
reader and default against the annotation. They take every field for one that may be left out of a call; a test holds
the calls against the declarations (tests/unit/remote/shared/schema/test_record.py).
"""

from typing import Any, Callable, Dict, Mapping, NamedTuple, Optional, Tuple, Type, TypeVar

from ..wire.frames import parse_json
from .fields import Fields

T = TypeVar("T")
Kind = TypeVar("Kind", bound=Type[Any])
Reader = Callable[[Fields, str], T]  # (the fields, a name) → its value: a method of Fields, or one made below

MAX_LENGTH = 1 << 20  # items of a list, characters of a text: a command line may be long
NO_DEFAULT: Any = object()  # the default of a field that has none


class FieldSpec(NamedTuple):
    """What a record's class says of one field."""

    read: Callable[[Fields, str], Any]
    default: Any
    as_is: bool = False  # its value is JSON already


def field(read: Reader[T], *, default: T = NO_DEFAULT) -> T:
    """Declare a record's field: how it is read, and what it is where it is missing, which else it may not be."""
    return FieldSpec(read, default)  # type: ignore[return-value]


def bulk(read: Reader[T], *, default: T = NO_DEFAULT) -> T:
    """Declare a record's field that may hold very many plain JSON values: it is written without a walk through them.

    Read it with ``Fields.long_list``, ``Fields.long_texts`` or ``Fields.raw``.
    """
    return FieldSpec(read, default, as_is=True)  # type: ignore[return-value]


def record(kind: Kind) -> Kind:
    """Make a named tuple whose fields' values are made by ``field`` a record: readers in READERS, defaults as usual.

    Raises TypeError if a field has no reader, or none has a default behind one that has.
    """
    given: Mapping[str, Any] = kind._field_defaults
    readers = {name: spec.read for name, spec in given.items() if type(spec) is FieldSpec}
    values = {name: spec.default if name in readers else spec for name, spec in given.items()}
    defaults = {name: value for name, value in values.items() if value is not NO_DEFAULT}
    if {*kind._fields} - {*readers} - {"more"}:
        raise TypeError("%s has a field without a reader" % kind.__name__)
    if tuple(defaults) != kind._fields[len(kind._fields) - len(defaults) :]:
        raise TypeError("%s has a field without a default behind one that has one" % kind.__name__)
    kind.READERS, kind._field_defaults = readers, defaults
    kind.AS_IS = {name for name, spec in given.items() if type(spec) is FieldSpec and spec.as_is}
    kind.__new__.__defaults__ = tuple(defaults.values())
    return kind


def read_record(kind: Type[T], data: Any, name: str) -> T:
    """A record of class ``kind`` from its JSON object, which errors call ``name``; raises DamagedError."""
    return record_in(Fields(data, name + ".", most=MAX_LENGTH), kind)


def read_records(kind: Type[T], data: Any, place: str) -> Tuple[T, ...]:
    """Records of class ``kind`` from a JSON list; raises DamagedError if one, or the list, is no such thing."""
    return many(kind)(Fields({place: data}, most=MAX_LENGTH), place)


def readers_of(kind: Type[Any]) -> Mapping[str, Reader[Any]]:
    """How each of a record's fields is read."""
    readers: Mapping[str, Reader[Any]] = kind.READERS
    return readers


def record_in(fields: Fields, kind: Type[T]) -> T:
    """A record from its fields; a field without a default must be there, though its reader may accept null."""
    declared: Any = kind
    readers, defaults = declared.READERS, declared._field_defaults
    found = {name: read(fields, name) for name, read in readers.items() if fields.there(name) or name not in defaults}
    for name, value in found.items():
        if value is None and not fields.there(name):
            raise fields.wrong(name, None, "given, or null")
    if "more" in defaults:
        found["more"] = fields.rest(readers)
    return kind(**found)


def nested(kind: Type[T]) -> Reader[T]:
    """The reader of a field that holds a record."""
    return lambda fields, name: record_in(fields.part(name), kind)


def many(kind: Type[T]) -> "Reader[Tuple[T, ...]]":
    """The reader of a field that holds a list of records."""
    return lambda fields, name: fields.each(name, lambda item: record_in(item, kind))


def by_key(read: Reader[T]) -> "Reader[Dict[str, T]]":
    """The reader of a field that holds an object of any keys, each value of which ``read`` reads."""
    return lambda fields, name: fields.mapping(name, read)


def checked(meant: Callable[[str], object], what: str) -> Reader[str]:
    """The reader of a text for which ``meant`` gives something true and raises no ValueError."""
    return lambda fields, name: fields.check(name, meant, what)


def one_of(*texts: str) -> Reader[str]:
    """The reader of a text that is one of these."""
    return checked(texts.__contains__, "one of " + ", ".join(texts))


def maybe(read: Reader[T]) -> "Reader[Optional[T]]":
    """The reader of a field that may be null."""
    return lambda fields, name: read(fields, name) if fields.given(name) else None


def nullable(read: Reader[T], *, default: T) -> T:
    """Declare a record's field that may be missing or null, and has its default then."""
    return field(lambda fields, name: read(fields, name) if fields.given(name) else default, default=default)


def parse_record(data: bytes, read: Callable[[Any], T]) -> T:
    """The record in a file's bytes; raises ValueError if they are no JSON, or no such record; nothing else."""
    return read(parse_json(data))


def to_fields(value: Any) -> Dict[str, Any]:
    """Return a record as a JSON object, its fields by name."""
    known: Dict[str, Any] = value._asdict()
    more, as_is = known.pop("more", {}), getattr(value, "AS_IS", ())
    return dict(more, **{name: field if name in as_is else to_plain(field) for name, field in known.items()})


def to_plain(value: Any) -> Any:
    """Return the value of a record's field as JSON has it: records as objects, tuples as lists."""
    if hasattr(value, "_asdict"):
        return to_fields(value)
    if isinstance(value, dict):
        return {name: to_plain(item) for name, item in value.items()}
    return [to_plain(item) for item in value] if isinstance(value, (list, tuple)) else value
