"""Text from elsewhere stays on its line, and a terminal obeys nothing in it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clusterddp.text.printable import one_line


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain, with ü and …", "plain, with ü and …"),
        ("two\nlines\r\n", "two\\nlines\\r\\n"),
        ("a\ttab and a\xa0wide one", "a tab and a wide one"),
        ("\x1b[2J\x1b]0;title\x07", "\\x1b[2J\\x1b]0;title\\x07"),
        ("\x9b2J\x85\u2028", "\\x9b2J\\x85\\u2028"),
        ("abc\u202edcba", "abc\\u202edcba"),
        ("\udc80 a byte that is no UTF-8", "\\udc80 a byte that is no UTF-8"),
    ],
)
def test_what_does_not_print_is_shown_as_python_writes_it(text: str, shown: str) -> None:
    assert one_line(text) == shown


@given(text=st.text())
def test_whatever_it_was_it_is_one_printable_line(text: str) -> None:
    shown = one_line(text)
    assert shown.isprintable()
    shown.encode()
    assert one_line(shown) == shown
