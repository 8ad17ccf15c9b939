"""One input for many readers."""

from __future__ import annotations

import os
import threading

from clusterddp.shell.execution import SharedInput


def test_every_reader_gets_the_whole_input_at_its_own_pace() -> None:
    out, into = os.pipe()
    with os.fdopen(out, "rb") as source:
        given = SharedInput(source)
        first, second = given.pieces(), given.pieces()
        os.write(into, b"one")
        assert next(first) == b"one"
        os.write(into, b"two")
        os.close(into)
        assert b"".join(first) == b"two"
        assert b"".join(second) == b"onetwo"
        assert list(given.pieces()) == [b"onetwo"]
        given.close()
        assert list(given.pieces()) == []


def test_a_reader_that_waits_ends_with_the_input() -> None:
    out, into = os.pipe()
    with os.fdopen(out, "rb") as source:
        given, found = SharedInput(source), list[bytes]()
        reader = threading.Thread(target=lambda: found.extend(given.pieces()))
        reader.start()
        given.close()
        reader.join(10)
        assert not reader.is_alive()
        assert found == []
        os.close(into)  # the thread that reads it ends
