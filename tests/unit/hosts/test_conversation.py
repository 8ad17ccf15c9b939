"""What is queued of a host's frames until the request's own thread takes it."""

from __future__ import annotations

from clusterddp.hosts.conversation import Exchange
from clusterddp.remote.shared.wire.frames import Frame


def test_of_a_grant_of_credit_nothing_else_that_its_header_holds_is_kept() -> None:
    exchange = Exchange(1)
    exchange.offered = 10
    exchange.take(Frame({"id": 1, "kind": "credit", "n": 7, "x": [[]] * 160}, b""), 500)
    queued = exchange.frames.get()
    assert queued is not None
    assert queued.header == {"kind": "credit", "n": 7}
