"""What a failed worker has said: the record of its exception, else the end of its stderr; whatever lies there."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from clusterddp.remote.logs.last_words import last_words
from clusterddp.remote.spool.quoted import MAX_QUOTED
from tests.unit.operation import run_operation
from tests.unit.spool_writer import Writer

if TYPE_CHECKING:
    from pathlib import Path


def told(writer: Writer) -> str:
    args = {"spool": str(writer.folder), "start": 1, "local_rank": 2}
    return str(run_operation(last_words, args)["text"])


def record(writer: Writer, value: Any) -> None:
    path = writer.folder / "errors" / "1.2.json"
    path.parent.mkdir(exist_ok=True)
    path.write_text(value if isinstance(value, str) else json.dumps(value))


def test_the_traceback_on_record_counts_before_what_else_was_printed(tmp_path: Path) -> None:
    writer = Writer(tmp_path)
    writer.write("1.2.err", b"Traceback\nValueError\nand more\n")
    assert told(writer) == "Traceback\nValueError\nand more\n"
    record(writer, {"message": {"extraInfo": {"py_callstack": "Traceback\nValueError\n"}}})
    assert told(writer) == "Traceback\nValueError\n"


@pytest.mark.parametrize(
    "value", ["", "{", [], {"message": "text"}, {"message": {"extraInfo": []}}, {"message": {"extraInfo": {}}}]
)
def test_a_record_without_one_is_none(tmp_path: Path, value: Any) -> None:
    writer = Writer(tmp_path)
    record(writer, value)
    assert told(writer) == ""
    writer.write("1.2.err", b"said\n")
    assert told(writer) == "said\n"


def test_both_are_bounded(tmp_path: Path) -> None:
    writer = Writer(tmp_path)
    writer.write("1.2.err", b"x" * MAX_QUOTED + b"end\n")
    assert (len(told(writer)), told(writer)[-4:]) == (MAX_QUOTED, "end\n")
    record(writer, {"message": {"extraInfo": {"py_callstack": "begin" + "x" * MAX_QUOTED + "end"}}})
    assert (told(writer)[:5], told(writer)[-3:], len(told(writer))) == ("begin", "end", MAX_QUOTED + 1)
