"""Secret values are found in text however a program writes them, whole or cut."""

from __future__ import annotations

import base64
import json
import re
import time
from typing import TYPE_CHECKING
from urllib.parse import quote, quote_plus

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clusterddp.remote.shared.text.redaction import HIDDEN, MAX_OCCURRENCES, MIN_PARTIAL, MIN_SECRET, Redaction

if TYPE_CHECKING:
    from collections.abc import Callable

VALUE = "s3cr3t-Wert é/+=&\\'\"x"
FORMS: dict[str, Callable[[str], str]] = {
    "plain": str,
    "repr": repr,
    "repr of bytes": lambda value: repr(value.encode()),
    "repr in a list": lambda value: repr([value, "it's"]),
    "repr beside a double quote": lambda value: repr(f'"{value}'),
    "JSON": json.dumps,
    "JSON, not ASCII": lambda value: json.dumps(value, ensure_ascii=False),
    "URL": lambda value: quote(value, safe=""),
    "URL, slashes kept": quote,
    "URL, small letters": lambda value: re.sub("%..", lambda escape: escape[0].lower(), quote(value, safe="")),
    "form": quote_plus,
}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("value", [VALUE, "plain-token", "it's", 'say "it"', "two words/7", "a\tb\\n c'"])
def test_a_value_is_struck_as_programs_write_it(form: str, value: str) -> None:
    written = FORMS[form](value)
    if len(value) < MIN_SECRET:
        return
    struck = Redaction([value]).text(f"401 for {written}: refused")
    assert HIDDEN in struck
    assert struck.startswith("401 for ")
    assert struck.endswith(": refused")
    assert len(struck) <= len("401 for : refused") + len(HIDDEN) + 20  # quotes, brackets and what else stood there


@given(st.text(max_size=20), st.text("abcXYZ019-._é /+'\"\\\n", min_size=MIN_SECRET, max_size=40), st.text(max_size=20))
def test_whatever_stands_around_a_value_it_is_struck(before: str, value: str, after: str) -> None:
    if len(value.strip()) < MIN_SECRET:
        return
    struck = Redaction([value]).text(before + value + after)
    assert HIDDEN in struck
    assert value.strip() not in struck.replace(HIDDEN, "")


@given(st.binary(min_size=12, max_size=40).map(bytes.hex), st.binary(max_size=5), st.binary(max_size=5))
def test_a_value_within_base64_is_struck(value: str, before: bytes, after: bytes) -> None:
    text = base64.b64encode(before + value.encode() + after).decode()
    kept = Redaction([value]).text(text).replace(HIDDEN, "")
    assert len(kept) <= (len(before) + len(after)) * 4 / 3 + 6


def test_values_within_each_other_and_values_that_overlap_are_struck_whole() -> None:
    redaction = Redaction(["token-1", "my-token-1-long", "long-tail-9"])
    assert redaction.text("a my-token-1-long-tail-9 b token-1") == f"a {HIDDEN} b {HIDDEN}"


def test_each_line_of_a_long_value_counts_and_the_frame_of_a_key_does_not() -> None:
    key = "-----BEGIN PRIVATE KEY-----\nMIIEvQIBADAN\nBgkqhkiG9w0B\n-----END PRIVATE KEY-----\n"
    redaction = Redaction([key])
    assert redaction.text("line MIIEvQIBADAN of it") == f"line {HIDDEN} of it"
    assert redaction.text("a -----BEGIN PRIVATE KEY----- alone") == "a -----BEGIN PRIVATE KEY----- alone"
    assert redaction.text(f"x{key.strip()}y") == f"x{HIDDEN}y"


def test_a_value_that_was_cut_off_at_an_end_is_struck_there_alone() -> None:
    redaction = Redaction(["hunter2-token"])
    assert redaction.text("nter2-token in front", begins=False) == f"{HIDDEN} in front"
    assert redaction.text("at the end hunter2-to", ends=False) == f"at the end {HIDDEN}"
    assert redaction.text("nter2-token whole hunter2-to") == "nter2-token whole hunter2-to"
    assert redaction.text("no en", begins=False) == "no en"


def test_short_values_stay_in_the_text() -> None:
    assert Redaction(["1", "", "true", "a b\n", "     \n"]).text("rank 1 was true, a b") == "rank 1 was true, a b"
    assert Redaction(["1"], least=1).text("rank 1") == f"rank {HIDDEN}"


def test_in_json_all_texts_are_struck_and_no_name() -> None:
    value = {"token-1": ["token-1", {"a": "xtoken-1"}, 5, None, True], "b": 1.5}
    assert Redaction(["token-1"]).value(value) == {"token-1": [HIDDEN, {"a": f"x{HIDDEN}"}, 5, None, True], "b": 1.5}
    assert Redaction(["token-1"]).value(["a token"], longest=5) == [f"a {HIDDEN}"]


def test_what_is_left_of_a_value_beside_a_cut_middle_is_struck() -> None:
    redaction = Redaction(["hunter2-Geheimnis"])
    assert redaction.text("ValueError: hunter2-Ge…heimnis (train.py:3)") == "ValueError: ********…******** (train.py:3)"
    assert redaction.text("a…b and hun…nis") == "a…b and hun…nis"  # too short to be known for a part of it


@given(st.text("ab…", min_size=MIN_SECRET, max_size=12), st.text("ab", max_size=20), st.text("ab", max_size=20))
def test_beside_an_ellipsis_the_longest_part_is_struck(value: str, before: str, behind: str) -> None:
    """The value's beginning before it, its end behind; a beginning and end of fewer than four letters stay."""
    forms = Redaction([value]).forms

    def left(text: str, form: str) -> int:
        sizes = range(MIN_PARTIAL, min(len(form), len(text)) + 1)
        return len(text) - max((size for size in sizes if text.endswith(form[:size])), default=0)

    kept = min(left(before, form) for form in forms)
    kept_behind = min(left(behind[::-1], form[::-1]) for form in forms)
    if any(form in text for form in forms for text in (before, behind, f"{before}…{behind}")):
        return
    ends = HIDDEN * (kept < len(before)), HIDDEN * (kept_behind < len(behind))
    expected = f"{before[:kept]}{ends[0]}…{ends[1]}{behind[len(behind) - kept_behind :]}"
    assert Redaction([value]).text(f"{before}…{behind}") == expected


@pytest.mark.parametrize("body", ["x" * 1500, "'\"" + "a" * 1500, "a" * 500 + "b" + "a" * 999])
def test_no_choice_of_values_and_ellipses_costs_much(body: str) -> None:
    """A host chooses both the values and the texts of its part of a bundle."""
    redaction = Redaction(["'\"" + "aé%" * 300 + str(number) for number in range(4)] + ["a" * 900, "a" * 450 + "b"])
    began = time.process_time()
    redaction.text((body + "…") * 100)
    assert time.process_time() - began < 5


def test_of_a_text_that_holds_a_value_too_often_nothing_is_left() -> None:
    """A host chooses both the values and the texts of its part of a bundle."""
    redaction = Redaction(["aaaaaa", "aaaaaaa"])
    assert redaction.text("before " + "a" * (MAX_OCCURRENCES + 6)) == HIDDEN
    assert redaction.text("before " + "a" * MAX_OCCURRENCES + " after") == f"before {HIDDEN} after"
