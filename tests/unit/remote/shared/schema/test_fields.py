"""Fields of JSON from elsewhere: by exact type and range, or one error that says which."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given

from clusterddp.remote.shared.schema.fields import MAX_LENGTH, DamagedError, Fields
from tests.unit.json_values import VALUES

if TYPE_CHECKING:
    from collections.abc import Callable

READERS: list[Callable[[Fields], object]] = [
    lambda fields: fields.text("a"),
    lambda fields: fields.maybe_text("a"),
    lambda fields: fields.maybe_path("a"),
    lambda fields: fields.number("a", 9),
    lambda fields: fields.maybe_number("a"),
    lambda fields: fields.flag("a"),
    lambda fields: fields.part("a").number("b"),
    lambda fields: fields.pair("a"),
    lambda fields: fields.pairs("a"),
    lambda fields: fields.text_pairs("a"),
    lambda fields: fields.long_texts("a"),
    lambda fields: fields.texts("a"),
    lambda fields: fields.each("a", lambda one: one.number("b")),
    lambda fields: fields.mapping("a", lambda one, key: one.number(key)),
    lambda fields: fields.check("a", str.isalpha, "letters"),
]


@given(value=VALUES)
@pytest.mark.parametrize("read", READERS)
def test_whatever_the_value_reading_gives_it_or_the_one_error(read: Callable[[Fields], object], value: Any) -> None:
    for data in ({"a": value}, value):
        try:
            read(Fields(data))
        except DamagedError as error:
            assert " is not " in str(error)  # noqa: PT017 - either is right


@pytest.mark.parametrize("value", [True, 1.0, "1", -1, 10, None, [1]])
def test_a_number_is_a_whole_one_in_its_range(value: Any) -> None:
    with pytest.raises(DamagedError, match="n is not a whole number up to 9"):
        Fields({"n": value}).number("n", 9)


def test_an_error_says_where_what_was_wanted_and_what_stands_there() -> None:
    with pytest.raises(DamagedError, match=r"gpus\.item\.memory is not a whole number up to .*: '-3'"):
        Fields({"gpus": [{"memory": -3}]}).each("gpus", lambda gpu: gpu.number("memory"))


def test_a_text_or_list_that_is_too_long_is_refused() -> None:
    with pytest.raises(DamagedError):
        Fields({"a": "x" * (MAX_LENGTH + 1)}).text("a")
    with pytest.raises(DamagedError):
        Fields({"a": [0] * (MAX_LENGTH + 1)}).numbers("a")
