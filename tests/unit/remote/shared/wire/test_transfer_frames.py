"""A frame between operator and host in a transfer is one order or report, or refused with the one error."""

from __future__ import annotations

import contextlib
import json
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clusterddp.remote.shared.schema.fields import DamagedError
from clusterddp.remote.shared.wire.transfer_frames import (
    FetchOrder,
    HostReady,
    Identity,
    JoinOrder,
    JoinReply,
    TransferOrder,
    TransferReport,
    UnitFailed,
    UnitHead,
    header_of,
    read_order,
    read_report,
)
from tests.unit.json_values import VALUES

if TYPE_CHECKING:
    from collections.abc import Callable

FRAMES: list[tuple[Any, Callable[[Any], Any]]] = [
    (TransferOrder(join=JoinOrder("h0", Identity("c", "k", "a"), "10.0.0.1", (29500, 29999), 1e6)), read_order),
    (TransferOrder(get=FetchOrder(3, [[0, 2]], "h1", "10.0.0.2", 29500)), read_order),
    (TransferOrder(head=UnitHead(3, 4096)), read_order),
    (TransferOrder(), read_order),
    (TransferReport(here=HostReady({"boot": "b"}, live=True)), read_report),
    (TransferReport(have=0), read_report),
    (TransferReport(failed=UnitFailed(3, "h1", "no route", reached=False)), read_report),
    (TransferReport(port=JoinReply(None, "no TLS")), read_report),
]


@pytest.mark.parametrize(("frame", "read"), FRAMES, ids=[f"{one}" for one, _ in FRAMES])
def test_a_frame_is_read_as_it_was_sent_and_says_no_more(frame: Any, read: Callable[[Any], Any]) -> None:
    header = json.loads(json.dumps(header_of(frame)))
    assert len(header) <= 1
    assert read({"kind": "data", "id": 7, **header}) == frame


@pytest.mark.parametrize("read", [read_order, read_report])
@given(value=VALUES | st.dictionaries(st.sampled_from([*TransferOrder._fields, *TransferReport._fields]), VALUES))
def test_whatever_a_frame_says_it_is_read_or_the_one_error_raised(read: Callable[[Any], Any], value: Any) -> None:
    with contextlib.suppress(DamagedError):  # either is right
        read(value)


@pytest.mark.parametrize("port", [65536, -1, "22", 1.5])
def test_a_port_that_is_none_is_refused(port: Any) -> None:
    with pytest.raises(DamagedError, match=r"port\.port is not a whole number up to 65535"):
        read_report({"port": {"port": port, "why": ""}})
