"""How an operation waits for the operator's data."""

from __future__ import annotations

import os

import pytest

from clusterddp.remote.helper import request
from clusterddp.remote.helper.request import Request
from clusterddp.remote.shared.wire.frames import encode


def test_what_is_to_be_done_while_nothing_arrives_is_done_and_may_end_the_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(request, "WAIT_INTERVAL", 1)
    source, given = os.pipe()
    waiting = Request(1, {}, source, given)
    calls = []

    def called() -> None:
        calls.append(1)
        if len(calls) == 3:
            os.write(given, encode({"id": 1, "kind": "data"}, b"x"))
        if len(calls) == 5:
            raise TimeoutError

    try:
        waiting.while_waiting = called
        assert (waiting.take()[0][0].body, len(calls)) == (b"x", 3)
        with pytest.raises(TimeoutError):
            waiting.read()
    finally:
        os.close(source)
        os.close(given)


def test_it_is_done_too_while_data_arrives_steadily() -> None:
    source, given = os.pipe()
    waiting = Request(1, {}, source, given)
    calls: list[int] = []
    try:
        waiting.while_waiting = lambda: calls.append(1)
        for _ in range(3):
            os.write(given, encode({"id": 1, "kind": "data"}, b"x"))
            waiting.take()
        assert len(calls) == 3
    finally:
        os.close(source)
        os.close(given)
