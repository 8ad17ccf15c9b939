"""Data for a running operation: only as much as was granted, and nobody waits for one that has ended."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

from clusterddp.hosts.outgoing import Outgoing
from clusterddp.remote.shared.wire.frames import CREDIT, MAX_BODY

if TYPE_CHECKING:
    from collections.abc import Mapping


class Wire:
    """What was written."""

    def __init__(self) -> None:
        self.frames: list[tuple[Mapping[str, Any], bytes]] = []
        self.came = threading.Condition()

    def write(self, header: Mapping[str, Any], body: bytes) -> None:
        with self.came:
            self.frames.append((header, body))
            self.came.notify_all()

    @property
    def size(self) -> int:
        return sum(len(body) for _, body in self.frames)


def test_who_leaves_ends_the_reading_of_answers_once_the_operation_runs() -> None:
    outgoing, left = Outgoing(), threading.Event()
    leaving = threading.Thread(target=outgoing.leave)
    leaving.start()
    outgoing.attach(Wire().write, left.set)
    leaving.join()
    assert left.is_set()


def test_it_sends_no_more_than_was_granted() -> None:
    outgoing, wire = Outgoing(), Wire()
    outgoing.attach(wire.write)
    sending = threading.Thread(target=outgoing.send, args=(b"x" * (CREDIT + 10 * MAX_BODY),))
    sending.start()
    with wire.came:
        assert wire.came.wait_for(lambda: wire.size >= CREDIT, 10)
        assert wire.size < CREDIT + MAX_BODY  # a frame may begin on the last byte
    outgoing.grant(CREDIT)
    sending.join(10)
    assert wire.size == CREDIT + 10 * MAX_BODY
    assert {header["kind"] for header, _ in wire.frames} == {"data"}


def test_who_waits_for_credit_or_a_beginning_gives_up_at_the_end() -> None:
    for attached in (True, False):
        outgoing, said = Outgoing(), list[bool]()
        if attached:
            outgoing.attach(Wire().write)
        sending = threading.Thread(target=lambda: said.append(outgoing.send(b"x" * 2 * CREDIT)))  # noqa: B023 - joined
        sending.start()
        outgoing.detach()
        sending.join(10)
        assert said == [False]
        outgoing.end()  # waits for nothing


def test_an_order_costs_no_credit_and_waits_for_the_beginning() -> None:
    outgoing, wire = Outgoing(), Wire()
    outgoing.order(stop=True)
    assert wire.frames == []
    outgoing.attach(wire.write)
    assert wire.frames == [({"kind": "data", "stop": True}, b"")]
    outgoing.order(rows=1)
    assert wire.frames[1:] == [({"kind": "data", "rows": 1}, b"")]
    outgoing.detach()
    outgoing.order(rows=2)  # nobody takes it any more
    assert len(wire.frames) == 2
