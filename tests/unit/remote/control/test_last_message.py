"""The end of a killed supervisor's node is said to who knows the run's key, and believed of who does."""

from __future__ import annotations

import contextlib
import socket
import threading
from typing import TYPE_CHECKING

import pytest

from clusterddp.remote.control import last_message
from clusterddp.remote.control.connection import PeerConnection, ProtocolError, Secret
from clusterddp.remote.control.messages import Hello, Message, PartEnded
from tests.unit.remote.control.test_connection import KEY, secret

if TYPE_CHECKING:
    from collections.abc import Iterator

WAIT = 10.0  # seconds for an answer on this machine
SPOKEN = 0.5  # and until the node whose end is said asks no more


@pytest.fixture
def node() -> Iterator[tuple[str, int]]:
    """The address of node 0 of a run, whose fence says that it has ended."""
    listener = socket.create_server(("127.0.0.1", 0))
    over = threading.Thread(target=last_message.answer, args=(listener, secret(0), WAIT))
    over.start()
    with listener:
        yield listener.getsockname()
        with contextlib.closing(asking(listener.getsockname(), secret(1)).socket):
            over.join(2 * WAIT)
        assert not over.is_alive()


@pytest.fixture(autouse=True)
def brief(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(last_message, "FURTHER_ANSWERS_TIME", SPOKEN)


def asking(address: tuple[str, int], ours: Secret, target: int = 0) -> PeerConnection:
    """A connection that asks whether a node's part has ended."""
    link = PeerConnection.connect(address, ours, target)
    link.is_question = True
    link.socket.settimeout(WAIT)
    hello = read(link)
    assert isinstance(hello, Hello)
    link.introduce(hello)
    return link


def read(link: PeerConnection) -> Message | None:
    """The next message; None where the connection has ended."""
    link.socket.settimeout(WAIT)
    while True:
        message = link.next()
        if message is not None or not link.receive():
            return message


def test_who_knows_the_key_hears_that_the_part_has_ended(node: tuple[str, int]) -> None:
    link = asking(node, secret(2))
    with contextlib.closing(link.socket):
        answer = read(link)
        assert isinstance(answer, PartEnded)
        link.check_ended(answer)


def test_a_stranger_who_is_dropped_as_he_speaks_ends_nothing(
    node: tuple[str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """With room for one, each is dropped for the next, and what it has sent is ready to be read at that moment."""
    monkeypatch.setattr(last_message, "MAX_CONNECTIONS", 1)
    with contextlib.ExitStack() as opened:
        for _ in range(50):
            stranger = opened.enter_context(socket.create_connection(node))
            stranger.sendall(b"x")
        test_who_knows_the_key_hears_that_the_part_has_ended(node)


@pytest.mark.parametrize(
    ("ours", "target"),
    [(secret(2, key=b"x" * 32), 0), (secret(2, run="other"), 0), (secret(2), 1), (secret(0), 0)],
    ids=["key", "run", "another node is meant", "itself"],
)
def test_who_does_not_prove_the_key_hears_nothing(node: tuple[str, int], ours: Secret, target: int) -> None:
    link = asking(node, ours, target)
    with contextlib.closing(link.socket):
        assert read(link) is None


@pytest.mark.parametrize("key", [b"x" * 32, KEY])
def test_an_end_that_is_not_proved_is_not_believed(key: bytes) -> None:
    """Somebody else holds the port of a lost node; even a member of the run cannot speak for another."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        link = PeerConnection.connect(listener.getsockname(), secret(2), 0)
        link.is_question = True
        liar = PeerConnection(listener.accept()[0], Secret(key, "run", 1))
        with contextlib.closing(link.socket), contextlib.closing(liar.socket):
            liar.greet()
            hello = read(link)
            assert isinstance(hello, Hello)
            link.introduce(hello)
            liar.their_nonce = link.nonce
            liar.send_ended(2)
            answer = read(link)
            assert isinstance(answer, PartEnded)
            with pytest.raises(ProtocolError):
                link.check_ended(answer)
