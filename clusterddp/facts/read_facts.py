"""Decodes hosts' JSON answers into dataclasses; a damaged answer is a HelperError that names the host.

A dataclass is its own schema: ``read_as`` reads each field by its annotation, so that a new fact is one line. What an
annotation cannot express is read by a function in it: ``uuid: Annotated[str, read_uuid]``.
"""

from __future__ import annotations

import dataclasses
import functools
import types
import typing
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from clusterddp.errors import HelperError
from clusterddp.remote.shared.schema.fields import MAX_LENGTH, Fields
from clusterddp.remote.shared.schema.record import record_in

__all__ = ["MAX_LENGTH", "Fields", "facts_of", "read_answer", "read_as"]

T = TypeVar("T")
Reader = Callable[[Fields, str], Any]
_PLAIN: Mapping[Any, Reader] = {str: Fields.text, int: Fields.number, bool: Fields.flag}
_NAMES = {"Fields": Fields, "Mapping": Mapping}  # for annotations of modules that import them for type checkers only


def facts_of(host: str, data: Any) -> Fields:
    """Typed access to one JSON object from a host; damaged fields raise HelperError."""
    return Fields(data, error=lambda what: HelperError(host, f"its facts are damaged: {what}"))


def read_answer(kind: type[T], host: str, data: Any) -> T:
    """A host's answer as a record of class ``kind``; damaged fields raise HelperError."""
    return record_in(facts_of(host, data), kind)


def read_as(kind: type[T], fields: Fields, **given: Any) -> T:
    """Decode a JSON object into a dataclass, field by field; values in ``given`` are used as they are.

    Supported annotations: ``str``, ``int`` (not negative), ``bool``, tuples (from lists), mappings and dataclasses
    (from objects), and each with ``| None``, which may be missing. Anything else that is missing, wrong or too long
    raises the error of ``fields``.
    """
    schema: Any = kind
    readers = _readers(schema)
    return kind(**{name: given[name] if name in given else read(fields, name) for name, read in readers.items()})


@functools.cache
def _readers(kind: Any) -> Mapping[str, Reader]:
    hints = typing.get_type_hints(kind, localns=_NAMES, include_extras=True)
    return {field.name: _reader_for(hints[field.name]) for field in dataclasses.fields(kind)}


def _reader_for(hint: Any) -> Reader:
    """The function that reads a field with this annotation."""
    origin, inner = typing.get_origin(hint), typing.get_args(hint)
    if origin is typing.Annotated:
        custom: Reader = inner[1]
        return custom
    if origin in (typing.Union, types.UnionType):
        read = _reader_for(next(one for one in inner if one is not types.NoneType))
        return lambda fields, name: read(fields, name) if fields.given(name) else None
    if origin is tuple:
        each, count = _reader_for(inner[0]), None if inner[-1] is Ellipsis else len(inner)
        return lambda fields, name: fields.items(name, lambda one: each(one, "item"), count)
    if origin is Mapping:
        value = _reader_for(inner[1])
        return lambda fields, name: fields.mapping(name, value)
    if dataclasses.is_dataclass(hint):
        kind: Any = hint
        return lambda fields, name: read_as(kind, fields.part(name))
    return _PLAIN[hint]
