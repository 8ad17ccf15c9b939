"""Collects the facts of connected hosts, and tries the network between them."""

from __future__ import annotations

import contextlib
import secrets
from typing import TYPE_CHECKING, Any

from clusterddp.errors import HelperError
from clusterddp.facts.dials import DialAttempt
from clusterddp.facts.host import Facts, python_query
from clusterddp.facts.network import dials
from clusterddp.hosts.ask import ask, clock_offset, reading_answer
from clusterddp.hosts.fanout import each
from clusterddp.remote.shared.probes.facts_records import FactsRequest
from clusterddp.remote.shared.probes.mark_records import FolderMarks, MarkedRequest, MarkRequest
from clusterddp.remote.shared.probes.network_records import DialRequest, DialTarget, Listening, ListenRequest
from clusterddp.remote.shared.schema.record import read_record, to_fields

if TYPE_CHECKING:
    from collections.abc import Generator, Mapping, Sequence

    from clusterddp.facts.dial_schedule import Schedule
    from clusterddp.facts.network import Candidate
    from clusterddp.hosts.client import Host
    from clusterddp.hosts.fanout import Outcome
    from clusterddp.remote.shared.wire.frames import Frame

FACTS_TIMEOUT = 330.0  # seconds: setup lines and a cold `import torch`, each within its own limit
MARK_TIMEOUT = 30.0  # seconds; what may hang on the host is given up there much earlier
DIAL_TIMEOUT = 4.0  # seconds to connect, and again to measure; enough for two lost SYNs to be retransmitted
LARGE_MESSAGE_BYTES = 1 << 16  # bytes of the message that shows whether large packets pass: many times the largest MTU
LISTEN_SECONDS = 60  # then a listener whose operator is gone ends by itself


def probe(hosts: Sequence[Host], *, fresh: bool = False) -> list[Outcome[Facts]]:
    """The facts of open hosts, in order, with each clock's offset from ours.

    ``fresh`` asks torch anew instead of using the host's cache.
    """
    return each(hosts, lambda host: facts_of_host(host, fresh=fresh, packages=False))


def try_connections(
    hosts: Sequence[Host], tried: Sequence[tuple[Candidate, Schedule]], *, echoes: int = 0
) -> tuple[list[DialAttempt], list[Outcome[Any]]]:
    """Try TCP connections on all candidates at once, as each one's schedule says.

    Second, the hosts that could not listen or dial.

    Large packets are sent on every connection; before them ``echoes`` small messages, to measure losses and round
    trips.
    """
    nonces = {host.name: secrets.token_hex(16) for host in hosts}
    with contextlib.ExitStack() as stack:
        listening = _listen(hosts, nonces, stack)
        ports = {outcome.name: outcome.get() for outcome in listening if not outcome.error}
        dialled = each(hosts, lambda host: _dial(host, tried, ports, nonces, echoes))
    outcomes: list[Outcome[Any]] = [*listening, *dialled]
    return [one for outcome in dialled for one in outcome.value or ()], [
        outcome for outcome in outcomes if outcome.error
    ]


def find_shared_folders(
    hosts: Sequence[Host], folders: Mapping[str, Mapping[str, str]]
) -> list[Outcome[dict[str, tuple[str, ...]]]]:
    """Find folders that several hosts share: each host leaves a marker in its own, and looks for those of the others.

    ``folders`` has, for each host, paths by the name of their purpose. The result is, for each host and name, the other
    hosts whose markers it sees; a folder in which it could leave none, or that did not answer, is left out.
    """
    nonces = {host.name: secrets.token_hex(16) for host in hosts}

    def mark_request(host: Host) -> dict[str, Any]:
        return to_fields(MarkRequest(folders=dict(folders[host.name]), nonce=nonces[host.name]))

    def find_marks(host: Host) -> dict[str, tuple[str, ...]]:
        others = {name: nonce for name, nonce in nonces.items() if name != host.name}
        request = MarkedRequest(folders=dict(folders[host.name]), nonces=others)
        answer = ask(host, "marked", request, FolderMarks, timeout=MARK_TIMEOUT)
        return {name: hosts_seen for name, hosts_seen in answer.folders.items() if name in left[host.name]}

    def mark(host: Host) -> list[str]:
        answer = host.call("mark", mark_request(host), timeout=MARK_TIMEOUT)
        with reading_answer(host.name):
            return [str(name) for name in answer]

    try:
        marked = each(hosts, mark)
        left = {outcome.name: outcome.value or [] for outcome in marked}
        return each(hosts, find_marks)
    finally:
        each(hosts, lambda host: host.call("unmark", mark_request(host), timeout=MARK_TIMEOUT))


def facts_of_host(host: Host, *, fresh: bool, packages: bool, timeout: float = FACTS_TIMEOUT) -> Facts:
    """One open host's facts; ``fresh`` as for ``probe``, ``packages`` lists the interpreter's packages too."""
    return decode_facts(host, ask_facts(host, fresh=fresh, packages=packages, timeout=timeout))


def ask_facts(host: Host, *, fresh: bool, packages: bool, timeout: float = FACTS_TIMEOUT) -> Any:
    """A host's raw answer to the ``facts`` operation, for ``decode_facts`` to decode."""
    request = FactsRequest(job=python_query(host.entry), fresh=fresh, packages=packages)
    return host.call("facts", to_fields(request), timeout=timeout)


def decode_facts(host: Host, found: Any) -> Facts:
    """Decode a host's facts and measure its clock now, at a time when this machine is less busy than when it asked."""
    offset, error = clock_offset(host)
    return Facts.from_json(host.name, found, clock_offset_ns=offset, clock_error_ns=error)


def _listen(
    hosts: Sequence[Host], nonces: Mapping[str, str], stack: contextlib.ExitStack
) -> list[Outcome[tuple[int, int]]]:
    """Start a listener on every host and return its two ports; leaving the stack ends the listeners."""

    def start(host: Host) -> tuple[int, int]:
        request = ListenRequest(ports=host.entry.ports, nonce=nonces[host.name], seconds=LISTEN_SECONDS)
        with reading_answer(host.name):
            ranged, tried = start_listener(host, "listen", request, stack)
            return ranged, tried

    return each(hosts, start)


def start_listener(host: Host, operation: str, request: ListenRequest, stack: contextlib.ExitStack) -> tuple[int, ...]:
    """Start an operation that listens until it is cancelled; its ports. Leaving the stack cancels it."""

    def frames() -> Generator[Frame, None, None]:
        yield from host.stream(operation, to_fields(request))

    header = next(stack.enter_context(contextlib.closing(frames()))).header
    with reading_answer(host.name):
        return read_record(Listening, header, "listening").ports


def _dial(
    host: Host,
    tried: Sequence[tuple[Candidate, Schedule]],
    ports: Mapping[str, tuple[int, int]],
    nonces: Mapping[str, str],
    echoes: int,
) -> list[DialAttempt]:
    """Let one host dial others; ``ports`` has two ports per host, of which the first is in clusterddp_ports."""
    targets = dials(tried, ports, nonces, host.name)
    dial_targets = tuple(
        # Of a host's two ports, that in clusterddp_ports is only connected to: one measurement per direction is enough.
        DialTarget(address, port, nonce, *((0, 0) if port == ports[target][0] else (echoes, LARGE_MESSAGE_BYTES)))
        for target, address, port, nonce in targets
    )
    request = DialRequest(targets=dial_targets, timeout=DIAL_TIMEOUT)
    answers = host.call("dial", to_fields(request), timeout=2 * DIAL_TIMEOUT * (1 + len(targets) // 256) + 60)
    if not isinstance(answers, list) or len(answers) != len(targets):
        raise HelperError(host.name, "its dials came back in another number than was asked for")
    return [
        DialAttempt.from_json(host.name, target, address, port, answer, ranged=port == ports[target][0])
        for (target, address, port, _), answer in zip(targets, answers, strict=True)
    ]
