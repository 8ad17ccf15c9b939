"""Connections that have proved nothing yet."""

from __future__ import annotations

import socket
import threading

from clusterddp.remote.system.unproven_connections import UnprovenConnections, end_connection


def test_of_too_many_strangers_the_oldest_gives_way_and_nobody_who_has_proved_itself() -> None:
    strangers = UnprovenConnections(2)
    pairs = [socket.socketpair() for _ in range(4)]
    strangers.add(pairs[0][0])
    strangers.discard(pairs[0][0])
    for ours, _ in pairs[1:]:
        strangers.add(ours)
    assert pairs[1][1].recv(1) == b""
    for ours, theirs in (pairs[0], *pairs[2:]):
        ours.sendall(b"x")
        assert theirs.recv(1) == b"x"
    for pair in pairs:
        for one in pair:
            strangers.discard(one)
            one.close()


def test_who_waits_in_a_socket_wakes_when_it_is_ended_and_ending_it_again_does_nothing() -> None:
    listener = socket.create_server(("127.0.0.1", 0))
    over = threading.Event()

    def wait() -> None:
        try:
            listener.accept()
        except OSError:
            over.set()

    thread = threading.Thread(target=wait)
    thread.start()
    end_connection(listener)
    thread.join(30)
    assert over.is_set()
    listener.close()
    end_connection(listener)
