"""Collects the facts of connected hosts, and tries the network between them."""

from __future__ import annotations

import contextlib
import secrets
from dataclasses import dataclass
from itertools import compress
from typing import TYPE_CHECKING, Any

from clusterddp.errors import HelperError
from clusterddp.facts.dials import DialAttempt
from clusterddp.facts.host import Facts, python_query
from clusterddp.facts.network import dials
from clusterddp.hosts.ask import ask, clock_offset, reading_answer
from clusterddp.hosts.fanout import MAX_AT_ONCE, each
from clusterddp.hosts.outgoing import Outgoing
from clusterddp.remote.shared.probes.facts_records import FactsRequest
from clusterddp.remote.shared.probes.mark_records import FolderMarks, MarkedRequest, MarkRequest
from clusterddp.remote.shared.probes.network_records import (
    DIAL_EXTENSIONS,
    DIALS_AT_ONCE,
    NO_DATA,
    OK,
    TIMEOUT,
    WRONG_NONCE,
    DialRequest,
    DialTarget,
    Heard,
    Listening,
    ListenRequest,
)
from clusterddp.remote.shared.schema.record import read_record, to_fields
from clusterddp.remote.shared.wire.frames import parse_json

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from clusterddp.facts.dial_schedule import Schedule
    from clusterddp.facts.network import Candidate
    from clusterddp.hosts.client import Host
    from clusterddp.hosts.fanout import Outcome

FACTS_TIMEOUT = 330.0  # seconds: setup lines and a cold `import torch`, each within its own limit
MARK_TIMEOUT = 30.0  # seconds; what may hang on the host is given up there much earlier
LISTENER_TIMEOUT = 60.0  # seconds until a host listens, and until it reports what it heard
DIAL_TIMEOUT = 4.0  # seconds to connect, and again to measure; enough for two lost SYNs to be retransmitted
LARGE_MESSAGE_BYTES = 1 << 16  # bytes of the message that shows whether large packets pass: many times the largest MTU
LISTEN_SECONDS = 60  # beside the time for all dials; then a listener whose operator is gone ends by itself
# A dial that ended with one of these is not repeated: another machine answered, which nobody is too busy for.
_CERTAIN = (OK, WRONG_NONCE)


def probe(hosts: Sequence[Host], *, fresh: bool = False) -> list[Outcome[Facts]]:
    """The facts of open hosts, in order, with each clock's offset from ours.

    ``fresh`` asks torch anew instead of using the host's cache.
    """
    return each(hosts, lambda host: facts_of_host(host, fresh=fresh, packages=False))


def try_connections(hosts: Sequence[Host], tried: Sequence[tuple[Candidate, Schedule]], *, echoes: int = 0) -> Trial:
    """Try TCP connections on all candidates at once, as each one's schedule says; repeat those that failed, once.

    The repetition finds the hosts quiet, for all other connections are over: what only failed because of them succeeds.
    Large packets are sent on every connection; before them ``echoes`` small messages, to measure losses and round
    trips.
    """
    nonces = {host.name: secrets.token_hex(16) for host in hosts}
    most = max((sum(len(schedule[host.name]) for _, schedule in tried) for host in hosts), default=0)
    # Two rounds of dials, which so many hosts make at once, and each of which takes so long at most.
    seconds = LISTEN_SECONDS + 2 * (1 + len(hosts) // MAX_AT_ONCE) * _dial_limit(2 * most)
    with contextlib.ExitStack() as stack:
        listening = each(hosts, lambda host: _Listener(host, nonces[host.name], seconds, stack))
        listeners = {outcome.name: outcome.value for outcome in listening if outcome.value}
        targets = {host.name: _targets(host.name, tried, listeners, nonces, echoes) for host in hosts}
        dialled = each(hosts, lambda host: _dial(host, targets[host.name]))
        first = {outcome.name: outcome.value or [] for outcome in dialled}
        failed = {name: [one.word not in _CERTAIN for one in attempts] for name, attempts in first.items()}
        quiet = each(
            [host for host in hosts if any(failed[host.name])],
            lambda host: _dial(host, list(compress(targets[host.name], failed[host.name]))),
        )
        again = {outcome.name: iter(outcome.value or ()) for outcome in quiet}
        attempts = [
            _later(one, next(again.get(name, iter(())), one)) if bad else one
            for name, own in first.items()
            for one, bad in zip(own, failed[name], strict=True)
        ]
        unsure = {name for one in attempts if one.word not in _CERTAIN for name in (one.source, one.target)}
        heard = each([listener for name, listener in listeners.items() if name in unsure], _Listener.end)
    outcomes: list[Outcome[Any]] = [*listening, *dialled]
    return Trial(
        attempts=attempts,
        deaf=[outcome for outcome in outcomes if outcome.error],
        heard={outcome.name: outcome.value for outcome in heard if outcome.value},
    )


def _later(first: DialAttempt, second: DialAttempt) -> DialAttempt:
    """Choose which of two tries of one connection counts; the first one failed.

    A rejection stands unless the second succeeds: a firewall sends only so many of them in a second.
    """
    return second if second.word == OK or first.word in (TIMEOUT, NO_DATA) else first


@dataclass(frozen=True, kw_only=True, slots=True)
class Trial:
    """The results of the connections that hosts tried to each other."""

    attempts: list[DialAttempt]
    deaf: list[Outcome[Any]]  # the hosts that could not listen or dial, and why
    heard: Mapping[str, Heard]  # of hosts with failed connections, what their listeners report


def find_shared_folders(
    hosts: Sequence[Host], folders: Mapping[str, Mapping[str, str]], others: Schedule | None = None
) -> list[Outcome[dict[str, tuple[str, ...]]]]:
    """Find folders that several hosts share: each host leaves a marker in its own, and looks for those of others.

    ``folders`` has, for each host, paths by the name of their purpose; ``others`` whose markers each host looks for, by
    default those of all. The result is, for each host and name, the other hosts whose markers it sees; a folder in
    which it could leave none, or that did not answer, is left out.
    """
    nonces = {host.name: secrets.token_hex(16) for host in hosts}

    def mark_request(host: Host) -> dict[str, Any]:
        return to_fields(MarkRequest(folders=dict(folders[host.name]), nonce=nonces[host.name]))

    def find_marks(host: Host) -> dict[str, tuple[str, ...]]:
        wanted = others[host.name] if others else [name for name in nonces if name != host.name]
        request = MarkedRequest(folders=dict(folders[host.name]), nonces={name: nonces[name] for name in wanted})
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


def start_listener(host: Host, operation: str, request: ListenRequest, stack: contextlib.ExitStack) -> tuple[int, ...]:
    """Start an operation that listens until it is cancelled; its ports. Leaving the stack cancels it."""
    frames = host.stream(operation, to_fields(request), patience=LISTENER_TIMEOUT)
    header = next(stack.enter_context(contextlib.closing(frames))).header
    with reading_answer(host.name):
        return read_record(Listening, header, "listening").ports


class _Listener:
    """A listener on a host, until the stack is left; ``ports``: one of clusterddp_ports, and one the kernel chose."""

    def __init__(self, host: Host, nonce: str, seconds: float, stack: contextlib.ExitStack) -> None:
        request = ListenRequest(ports=host.entry.ports, nonce=nonce, seconds=seconds)
        self.name = host.name
        self._outgoing = Outgoing()
        frames = host.stream("listen", to_fields(request), self._outgoing, patience=LISTENER_TIMEOUT)
        self._frames = stack.enter_context(contextlib.closing(frames))
        header = next(self._frames).header
        with reading_answer(host.name):
            ranged, chosen = read_record(Listening, header, "listening").ports
        self.ports = ranged, chosen

    def end(self) -> Heard:
        """End it; what it reports. Raises HelperError or UnreachableError."""
        self._outgoing.end()
        frame = next((frame for frame in self._frames if frame.kind == "end"), None)
        if frame is None:
            raise HelperError(self.name, "its listener ended without a report")
        with reading_answer(self.name):
            return read_record(Heard, parse_json(frame.body), "heard")


@dataclass(frozen=True, kw_only=True, slots=True)
class _Target:
    """One connection that a host is to try."""

    name: str
    ranged: bool
    dial: DialTarget


def _targets(
    source: str,
    tried: Sequence[tuple[Candidate, Schedule]],
    listeners: Mapping[str, _Listener],
    nonces: Mapping[str, str],
    echoes: int,
) -> list[_Target]:
    """The connections that one host is to try, two to each other host; the first port is in clusterddp_ports."""
    ports = {name: listener.ports for name, listener in listeners.items()}
    targets = []
    for name, address, port, nonce in dials(tried, ports, nonces, source):
        ranged = port == ports[name][0]
        # That in clusterddp_ports is only connected to: one measurement per direction is enough.
        measured = (0, 0) if ranged else (echoes, LARGE_MESSAGE_BYTES)
        targets.append(_Target(name=name, ranged=ranged, dial=DialTarget(address, port, nonce, *measured)))
    return targets


def _dial(host: Host, targets: Sequence[_Target]) -> list[DialAttempt]:
    """Let one host dial others."""
    request = DialRequest(targets=tuple(target.dial for target in targets), timeout=DIAL_TIMEOUT)
    answers = host.call("dial", to_fields(request), timeout=_dial_limit(len(targets)))
    if not isinstance(answers, list) or len(answers) != len(targets):
        raise HelperError(host.name, "its dials came back in another number than was asked for")
    return [
        DialAttempt.from_json(host.name, one.name, one.dial.address, one.dial.port, answer, ranged=one.ranged)
        for one, answer in zip(targets, answers, strict=True)
    ]


def _dial_limit(count: int) -> float:
    """The longest time, in seconds, that a host needs for ``count`` dials, each with all its extensions."""
    return (2 + DIAL_EXTENSIONS) * DIAL_TIMEOUT * (1 + count // DIALS_AT_ONCE) + 60
