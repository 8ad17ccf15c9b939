"""Which lines are wanted, in the words of `logs`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from clusterddp.errors import UsageError
from clusterddp.logs.selection import Selection, selected_by

if TYPE_CHECKING:
    from clusterddp.logs.selection import Words


def test_the_words_of_logs_are_read_as_on_the_command_line() -> None:
    words: Words = {
        "rank": "0,2-3",
        "stream": "err",
        "since": "10m",
        "until": 5,
        "grep": "loss",
        "tail": 4,
        "host": "gpu*",
    }
    found = selected_by(words, 3_600 * 10**9)
    wanted = Selection(
        ranks=(0, 2, 3), stream="err", since_ns=3_000 * 10**9, until_ns=5, grep="loss", tail=4, pattern="gpu*"
    )
    assert found == wanted
    assert selected_by({"rank": [1, 2]}, 0).ranks == (1, 2)
    assert selected_by({}, 0) == Selection()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ({"rank": "x"}, "'x' is no list of ranks; write 0,2-5"),
        ({"since": "yesterday"}, "'yesterday' is no time; write 10m"),
        ({"ranks": 1}, "ranks is no option of logs; use one of rank, host"),
        ({"stream": "both "}, "--stream both "),
        ({"tail": -1}, "--tail -1 is no number of lines; write a number from 0 to 9223372036854775807"),
        ({"tail": 1 << 63}, "--tail 9223372036854775808 is no number"),
        ({"tail": "5"}, "--tail '5' is no number"),
        ({"tail": 2.5}, "--tail 2.5 is no number"),
        ({"tail": True}, "--tail True is no number"),
        ({"grep": 5}, "--grep 5 is no text"),
        ({"grep": b"x"}, "--grep b'x' is no text"),
        ({"since": 1 << 63}, "9223372036854775808 is no time"),
        ({"until": -5}, "-5 is no time"),
    ],
)
def test_words_that_cannot_be_meant_are_refused(words: Any, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        selected_by(words, 0)
