"""Ask one host: the request and the answer are records; a damaged answer is that host's error."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any, TypeVar

from clusterddp.errors import HelperError
from clusterddp.hosts.answers import DEFAULT_LIMIT
from clusterddp.remote.shared.schema.record import read_record, read_records, to_fields

if TYPE_CHECKING:
    from collections.abc import Iterator

    from clusterddp.hosts.answers import Limit
    from clusterddp.hosts.client import Host

T = TypeVar("T")
TIMEOUT = 120.0  # seconds
CLOCK_ROUND_TRIPS = 4


def ask(
    host: Host, operation: str, request: Any, kind: type[T], *, timeout: float = TIMEOUT, limit: Limit = DEFAULT_LIMIT
) -> T:
    """Run an operation with the record ``request``; return its answer, a record of class ``kind``.

    Raises as ``Host.call``, and HelperError if the answer is no such record.
    """
    answer = host.call(operation, to_fields(request), timeout=timeout, limit=limit)
    with reading_answer(host.name):
        return read_record(kind, answer, "answer")


def ask_list(host: Host, operation: str, request: Any, kind: type[T], *, timeout: float = TIMEOUT) -> tuple[T, ...]:
    """Do the same as ``ask`` where the answer is a list of records."""
    answer = host.call(operation, to_fields(request), timeout=timeout)
    with reading_answer(host.name):
        return read_records(kind, answer, "answer")


@contextlib.contextmanager
def reading_answer(host: str) -> Iterator[None]:
    """Report a missing or wrongly typed part of a host's answer, read in the block, as that host's error."""
    try:
        yield
    except (LookupError, TypeError, ValueError, AttributeError) as error:
        raise HelperError(host, f"its answer is damaged: {error!r}"[:300]) from error


def clock_offset(host: Host) -> tuple[int, int]:
    """Return the host's clock minus ours, and the possible error, in ns, from the fastest of some round trips."""
    rounds = [host.ping() for _ in range(CLOCK_ROUND_TRIPS)]
    sent, theirs, received = min(rounds, key=lambda times: times[2] - times[0])
    return theirs - (sent + received) // 2, max(0, received - sent + 1) // 2
