"""What a mistyped name is close to, and that nothing far is suggested."""

from __future__ import annotations

import pytest

from clusterddp.text.nearest import edit_distance, nearest

KNOWN = ("up", "run", "runs", "status", "doctor", "hosts", "train.py")


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("upp", "up"), ("rnu", "run"), ("hots", "hosts"), ("statsu", "status"), ("sttus", "status"),
        ("doktor", "doctor"), ("dokkor", "doctor"), ("tran.py", "train.py"), ("trian.py", "train.py"),
        ("trian", ""), ("x", ""), ("", ""), ("frob", ""), ("houses", "hosts"), ("tests.py", ""), ("s" * 10_000, ""),
    ],
)  # fmt: skip
def test_only_a_name_that_is_close_is_suggested(name: str, meant: str) -> None:
    assert nearest(name, KNOWN) == meant


@pytest.mark.parametrize(
    ("first", "second", "far"),
    [
        ("", "", 0),
        ("a", "", 1),
        ("", "abc", 3),
        ("ab", "ba", 1),
        ("abc", "abd", 1),
        ("hots", "host", 1),
        ("ca", "abc", 3),
    ],
)
def test_letters_left_out_added_replaced_and_exchanged_count_one_each(first: str, second: str, far: int) -> None:
    assert edit_distance(first, second) == edit_distance(second, first) == far
