"""Hosts that pass chunks on to each other over TLS on this machine, and what strangers and hostile members can do."""

from __future__ import annotations

import contextlib
import os
import socket
import ssl
import threading
import time
from typing import TYPE_CHECKING, Any

import pytest

from clusterddp.remote.shared.wire.chunks import CHUNK, Chunk, digest_of
from clusterddp.remote.shared.wire.transfer_frames import JoinOrder
from clusterddp.remote.transfer import peers
from clusterddp.remote.transfer.host_to_host import HostToHostChunks
from clusterddp.remote.transfer.peers import MAX_UNPROVEN, MAX_UPLOADS, MAX_UPLOADS_PER_HOST, TransferPeers
from clusterddp.sync.transfer.certificates import Authority

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

PORTS = (29500, 29999)
DATA = [b"first", b"second" * 1000, b"", bytes(CHUNK)]
CHUNKS = [Chunk(digest_of(data), len(data)) for data in DATA]
HERE = {chunk.digest: data for chunk, data in zip(CHUNKS, DATA, strict=True)}
SMALL = [[0, 3]]


def stored(ranges: Any) -> tuple[list[Chunk], Callable[[str], bytes]]:
    spread = HostToHostChunks.__new__(HostToHostChunks)
    spread._chunks = CHUNKS
    return spread._chunks_of(ranges), HERE.__getitem__


class Transfer:
    """Hosts of one transfer."""

    def __init__(self) -> None:
        self.authority = Authority()
        self.hosts: list[TransferPeers] = []

    def own(self, name: str, **more: Any) -> JoinOrder:
        return JoinOrder(name, self.authority.identity(name), "127.0.0.1", PORTS)._replace(**more)

    def host(self, name: str, stored: Any = stored, **more: Any) -> TransferPeers:
        self.hosts.append(TransferPeers(self.own(name, **more), stored))
        return self.hosts[-1]


@pytest.fixture
def transfer() -> Iterator[Transfer]:
    made = Transfer()
    yield made
    for host in made.hosts:
        host.close()


def place(host: TransferPeers) -> tuple[str, int]:
    assert host.port
    return "127.0.0.1", host.port


def test_a_host_takes_chunks_from_another(transfer: Transfer) -> None:
    giver, taker = transfer.host("h0"), transfer.host("h1", ports=[])
    assert taker.port is None
    for _ in range(2):  # over the same connection
        assert taker.fetch("h0", place(giver), SMALL, CHUNKS[:3]) == [(digest_of(one), one) for one in DATA[:3]]
    assert taker.fetch("h0", place(giver), [[3, 4]], CHUNKS[3:]) == [(CHUNKS[3].digest, DATA[3])]


def test_a_host_listens_on_its_address_alone_and_no_more_once_closed(transfer: Transfer) -> None:
    giver = transfer.host("h0", address="127.0.0.2")
    assert giver.port is not None
    assert PORTS[0] <= giver.port <= PORTS[1]
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", giver.port), 1)
    socket.create_connection(("127.0.0.2", giver.port), 1).close()
    giver.close()
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.2", giver.port), 1)


def test_keys_leave_no_file(transfer: Transfer, monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    transfer.host("h0")
    assert not list(tmp_path.iterdir())


def test_who_answers_with_another_operators_certificate_is_not_believed(transfer: Transfer) -> None:
    stranger, taker = Transfer().host("h0"), transfer.host("h1")
    transfer.hosts.append(stranger)
    with pytest.raises(ssl.SSLError):
        taker.fetch("h0", place(stranger), SMALL, CHUNKS[:3])


def test_who_answers_in_place_of_another_member_is_not_believed(transfer: Transfer) -> None:
    giver, taker = transfer.host("h0"), transfer.host("h1")
    with pytest.raises(ssl.SSLError):
        taker.fetch("h2", place(giver), SMALL, CHUNKS[:3])


@pytest.mark.parametrize("shown", ["nothing", "another operator's"])
def test_who_shows_no_certificate_of_this_transfer_gets_nothing(transfer: Transfer, shown: str) -> None:
    asked: list[Any] = []

    def give(ranges: Any) -> Any:
        asked.append(ranges)
        return stored(ranges)

    giver = transfer.host("h0", give)
    if shown == "nothing":
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    else:
        context = peers._context(Transfer().own("h1").identity, ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    got = b""
    with contextlib.suppress(OSError):
        plain = socket.create_connection(place(giver), 5)
        with plain, context.wrap_socket(plain) as connection:
            connection.sendall(b"[[0,3]]\n")
            got = connection.recv(1 << 16)
    assert not got
    assert not asked


def lies(found: tuple[list[Chunk], Any]) -> dict[str, Any]:
    chunks, read = found
    return {
        "other bytes": (chunks, lambda digest: bytes(len(read(digest)))),
        "fewer bytes": (chunks, lambda digest: read(digest)[:-1]),
        "other chunks": (CHUNKS[1:2], read),
        "none": ([], read),
        "twice": (chunks * 2, read),
    }


@pytest.mark.parametrize("how", lies(stored(SMALL)))
def test_what_is_not_the_operators_chunk_is_refused(transfer: Transfer, how: str) -> None:
    giver = transfer.host("h0", lambda ranges: lies(stored(ranges))[how])
    taker = transfer.host("h1")
    with pytest.raises((ValueError, OSError)):
        taker.fetch("h0", place(giver), SMALL, CHUNKS[:3])
    honest = transfer.host("h2")
    assert taker.fetch("h2", place(honest), SMALL, CHUNKS[:3])


def test_a_host_that_dies_in_the_middle_is_told_of_at_once(transfer: Transfer) -> None:
    def dies(digest: str) -> bytes:
        giver.close()
        return HERE[digest]

    giver, taker = transfer.host("h0", lambda ranges: (stored(ranges)[0], dies)), transfer.host("h1")
    began = time.monotonic()
    with pytest.raises((ValueError, OSError)):
        taker.fetch("h0", place(giver), SMALL, CHUNKS[:3])
    assert time.monotonic() - began < peers.STALL_TIMEOUT


def test_nobody_at_the_port_is_a_host_out_of_reach(transfer: Transfer) -> None:
    with socket.socket() as held:  # so that nobody else listens there meanwhile
        held.bind(("127.0.0.1", 0))
        with pytest.raises(ConnectionError):
            transfer.host("h1", ports=[]).fetch("h0", held.getsockname(), SMALL, CHUNKS[:3])


def test_uploads_wait_behind_all_others_for_the_cpu_but_no_handshake_does(
    transfer: Transfer, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[tuple[str, int]] = []
    real = ssl.SSLSocket.do_handshake

    def note(what: str) -> None:
        seen.append((what, os.getpriority(os.PRIO_PROCESS, threading.get_native_id())))

    def handshake(connection: ssl.SSLSocket, *more: Any) -> None:
        if connection.server_side:
            note("handshake")
        real(connection, *more)

    def counted(ranges: Any) -> tuple[list[Chunk], Callable[[str], bytes]]:
        note("upload")
        return stored(ranges)

    monkeypatch.setattr(ssl.SSLSocket, "do_handshake", handshake)
    giver = transfer.host("h0", counted)
    assert transfer.host("h1").fetch("h0", place(giver), SMALL, CHUNKS[:3])
    assert seen == [("handshake", os.getpriority(os.PRIO_PROCESS, 0)), ("upload", peers._NICE)]


def test_who_answers_slowly_is_given_up(transfer: Transfer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peers, "STALL_TIMEOUT", 0.2)
    held = threading.Event()
    giver = transfer.host("h0", lambda ranges: (stored(ranges)[0], lambda _digest: held.wait() and b""))
    with pytest.raises(TimeoutError):
        transfer.host("h1").fetch("h0", place(giver), SMALL, CHUNKS[:3])
    held.set()


def test_who_sends_a_byte_now_and_then_is_given_up_too(transfer: Transfer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peers, "UNIT_TIMEOUT", 0.5)
    giver, taker = transfer.host("h0", rate=100_000), transfer.host("h1")
    with pytest.raises(OSError, match="slow"):
        taker.fetch("h0", place(giver), [[3, 4]], CHUNKS[3:])


def test_strangers_that_say_nothing_hold_nobody_up(transfer: Transfer) -> None:
    giver, taker = transfer.host("h0"), transfer.host("h1")
    crowd = [socket.create_connection(place(giver), 5) for _ in range(MAX_UNPROVEN + 10)]
    assert taker.fetch("h0", place(giver), SMALL, CHUNKS[:3])
    assert crowd[0].recv(1) == b""  # the oldest gave way
    for one in crowd:
        one.close()


def test_a_member_that_reads_nothing_holds_two_uploads_at_most(transfer: Transfer) -> None:
    giver, taker = transfer.host("h0"), transfer.host("h1")
    slow = peers._context(transfer.own("h2").identity, ssl.PROTOCOL_TLS_CLIENT)
    held = []
    for _ in range(MAX_UPLOADS):
        connection = socket.create_connection(place(giver), 5)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        held.append(slow.wrap_socket(connection, server_hostname="h0"))
        held[-1].sendall(b"[[3,4]]\n")
    assert MAX_UPLOADS_PER_HOST < MAX_UPLOADS
    assert taker.fetch("h0", place(giver), SMALL, CHUNKS[:3])
    for one in held:
        one.close()


def test_a_member_holds_eight_connections_at_most(transfer: Transfer) -> None:
    giver, greedy = transfer.host("h0"), peers._context(transfer.own("h2").identity, ssl.PROTOCOL_TLS_CLIENT)
    with contextlib.ExitStack() as held:
        for number in range(8 + 1):
            plain = held.enter_context(socket.create_connection(place(giver), 5))
            connection = held.enter_context(greedy.wrap_socket(plain, server_hostname="h0"))
            connection.settimeout(10)
            connection.sendall(b"[[0,1]]\n")
            got = b""
            with contextlib.suppress(ConnectionError):
                got = connection.recv(1)
            assert bool(got) == (number < 8)
        assert transfer.host("h1").fetch("h0", place(giver), SMALL, CHUNKS[:3])


@pytest.mark.parametrize("side", [ssl.PROTOCOL_TLS_SERVER, ssl.PROTOCOL_TLS_CLIENT])
def test_no_older_tls_is_spoken_whatever_the_system_allows(transfer: Transfer, side: Any) -> None:
    assert peers._context(transfer.own("h0").identity, side).minimum_version >= ssl.TLSVersion.TLSv1_2


NO_REQUESTS = (b"{", b"null", b'"x"', b"[[0]]", b"[[9,9]]", b"[[null,1]]", b"[[0,4],[0,4]]", b"x" * peers.MAX_LINE)


@pytest.mark.parametrize("line", NO_REQUESTS, ids=range(len(NO_REQUESTS)))
def test_a_request_that_is_none_costs_its_own_connection(transfer: Transfer, line: bytes) -> None:
    giver = transfer.host("h0")
    context = peers._context(transfer.own("h2").identity, ssl.PROTOCOL_TLS_CLIENT)
    with context.wrap_socket(socket.create_connection(place(giver), 5), server_hostname="h0") as connection:
        connection.settimeout(5)
        connection.sendall(line + b"\n")
        with contextlib.suppress(ConnectionError):
            assert connection.recv(1) == b""
    assert transfer.host("h1").fetch("h0", place(giver), SMALL, CHUNKS[:3])


def test_a_rate_holds_for_all_uploads_together(transfer: Transfer) -> None:
    giver, takers = transfer.host("h0", rate=8 << 20), [transfer.host(f"h{number}") for number in (1, 2)]
    began = time.monotonic()
    threads = [
        threading.Thread(target=taker.fetch, args=("h0", place(giver), [[3, 4]], CHUNKS[3:])) for taker in takers
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert time.monotonic() - began > 2 * CHUNK / (8 << 20) * 0.8
