"""Ports of a range: listened on at one address, and free on all of them."""

from __future__ import annotations

import socket
from concurrent.futures import ThreadPoolExecutor

import pytest

from clusterddp.remote.system.bootstrap import Refused
from clusterddp.remote.system.ports import bind_ports


def a_range(count: int) -> tuple[int, int]:
    """So many ports in a row that are free now."""
    while True:
        with socket.create_server(("", 0)) as server:
            first = int(server.getsockname()[1])
        try:
            for port in range(first, first + count):
                socket.create_server(("", port)).close()
        except (OSError, OverflowError):
            continue
        return first, first + count - 1


def close(listeners: list[socket.socket]) -> None:
    for listener in listeners:
        listener.close()


def test_it_listens_on_the_address_given_and_on_no_other() -> None:
    (listener,) = bind_ports(a_range(3), 1, "127.0.1.100")
    port = listener.getsockname()[1]
    socket.create_connection(("127.0.1.100", port)).close()
    for address in ("127.0.0.1", "127.0.1.101"):
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection((address, port))
    listener.close()


def test_nodes_of_one_machine_never_get_the_same_port_also_when_they_start_at_once() -> None:
    ports = a_range(24)
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda rank: bind_ports(ports, 2, f"127.0.1.{100 + rank}"), range(8)))
    numbers = [listener.getsockname()[1] for listeners in found for listener in listeners]
    assert len(set(numbers)) == 16
    for listeners in found:
        close(listeners)


def test_a_port_that_somebody_has_on_any_address_is_not_free() -> None:
    first, last = a_range(2)
    with socket.create_server(("127.0.0.9", first)):
        (listener,) = bind_ports((first, last), 1, "127.0.1.100")
        assert listener.getsockname()[1] == last
        with pytest.raises(Refused, match="no free port"):
            bind_ports((first, last), 1, "127.0.1.101")
        listener.close()


def test_a_port_whose_last_connection_has_just_ended_is_taken_when_there_is_no_other() -> None:
    ports = a_range(1)
    (listener,) = bind_ports(ports, 1, "127.0.1.100")
    with socket.create_connection(listener.getsockname()):
        listener.accept()[0].close()  # the side that ends first keeps the port for a minute
    listener.close()
    close(bind_ports(ports, 1, "127.0.1.100"))


def test_an_address_that_is_not_this_machines_is_listened_for_on_all() -> None:
    (listener,) = bind_ports(a_range(1), 1, "192.0.2.1")
    assert listener.getsockname()[0] == "0.0.0.0"
    listener.close()


def test_an_ipv6_address() -> None:
    (listener,) = bind_ports(a_range(1), 1, "::1")
    assert listener.getsockname()[0] == "::1"
    listener.close()
