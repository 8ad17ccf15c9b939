"""A command as a value, and what hosts tell of its output and its end."""

from __future__ import annotations

import json
from typing import Any

import pytest

from clusterddp.errors import HelperError, UsageError
from clusterddp.remote.shared.wire.frames import Frame
from clusterddp.shell.command import Command, end_frame, output_frame, read_end

END = {"code": 3, "error": "", "stopped": False, "left": [{"pid": 7, "command": "sleep"}], "cwd": "/w", "home": False}


@pytest.mark.parametrize("given", [{}, {"argv": ("a",), "shell": "a"}, {"argv": ("a\0b",)}, {"shell": "\0"}])
def test_what_is_no_command_is_refused(given: dict[str, Any]) -> None:
    with pytest.raises(UsageError):
        Command(**given)


def test_an_end_is_read_as_it_was_told() -> None:
    found = read_end("gpu00", END)
    assert (found.host, found.code, found.left, found.cwd) == ("gpu00", 3, ("7 sleep",), "/w")


@pytest.mark.parametrize("name", sorted(END))
@pytest.mark.parametrize("value", [None, -1, 1 << 70, [1], {"a": 1}, "\0"])
def test_a_damaged_end_is_an_error_of_its_host(name: str, value: object) -> None:
    body = json.dumps({**END, name: value}).encode()
    with pytest.raises(HelperError, match="gpu00"):
        end_frame("gpu00", Frame({"kind": "end"}, body))


def test_output_counts_its_offsets_stream_by_stream_and_takes_nothing_else_from_the_host() -> None:
    offsets: dict[str, int] = {}
    hostile = {"kind": "data", "stream": "out", "file": "/etc/passwd", "rank": 9, "offset": 77}
    first = output_frame("gpu00", Frame(hostile, b"abc"), offsets)
    second = output_frame("gpu00", Frame({"kind": "data", "stream": "out"}, b"de"), offsets)
    assert (first.part.file, first.part.offset, first.part.rank) == ("out", 0, None)
    assert (second.part.offset, second.part.next) == (3, 5)
    with pytest.raises(HelperError, match="damaged"):
        output_frame("gpu00", Frame({"kind": "data", "stream": "agent"}, b""), offsets)
