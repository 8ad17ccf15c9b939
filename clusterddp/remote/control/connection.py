"""One connection of run control: bytes in and out, and the proof on both sides that they know the run's key.

Who was called speaks first; HMAC over both sides' nonces, so nothing that was heard can be used again:

    called:  hello      nonce
    caller:  node       place, nonce, proof
    called:  lead       proof          "I lead you from now on", or
             elsewhere  place, proof   "ask that one", and the connection ends

Then the frames of shared/frames.py, without bodies. Not here: who leads whom (control/leader.py).
"""

import errno
import hashlib
import hmac
import os
import socket
import time
from typing import Any, Dict, List, Optional, Tuple

from ..shared.frames import Decoder, ProtocolError, encode

NONCE = 16  # bytes
BLOCK = 1 << 16


def proof(key: bytes, role: str, theirs: str, ours: str, place: int) -> str:
    """What shows that one side knows the key: HMAC-SHA256 over its role, both nonces and a node's place."""
    return hmac.new(key, "|".join((role, theirs, ours, str(place))).encode(), hashlib.sha256).hexdigest()


class Link:
    """One connection.

    Args:
        connection: The socket.
        key: The run's.
        target: The place we call; None if we were called.
    """

    def __init__(self, connection: socket.socket, key: bytes, target: Optional[int] = None) -> None:
        connection.setblocking(False)
        self.socket = connection
        self.key = key
        self.target = target
        self.nonce = os.urandom(NONCE).hex()
        self.theirs = ""  # the other side's nonce
        self.place: Optional[int] = None  # the other side's, once proved
        self.refused = False  # nobody listens there any more
        self.decoder = Decoder()
        self.unsent = bytearray()
        self.heard = time.monotonic()
        self.beat = self.heard

    @classmethod
    def to(cls, address: Tuple[str, int], key: bytes, target: int) -> "Link":
        """Call an address; whether somebody answers is seen by reading.

        Raises:
            OSError: there is no way there, or no socket left.
        """
        family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
        connection = socket.socket(family, socket.SOCK_STREAM)
        connection.setblocking(False)
        status = connection.connect_ex(address)
        if status not in (0, errno.EINPROGRESS):
            connection.close()
            raise OSError(status, os.strerror(status))
        return cls(connection, key, target)

    def receive(self) -> Optional[List[Dict[str, Any]]]:
        """What has come; None when the connection has ended.

        Raises:
            ProtocolError: it is no stream of ours.
        """
        try:
            data = self.socket.recv(BLOCK)
        except BlockingIOError:
            return []
        except OSError as error:
            self.refused = isinstance(error, ConnectionRefusedError)
            data = b""
        if not data:
            return None
        self.heard = time.monotonic()
        return [frame.header for frame in self.decoder.feed(data)]

    def send(self, message: Dict[str, Any]) -> bool:
        """Send a message, or what the socket takes of it now; False if the connection has ended."""
        self.unsent += encode(message)
        return self.flush()

    def flush(self) -> bool:
        """Send what waits; False if the connection has ended."""
        try:
            sent = self.socket.send(self.unsent) if self.unsent else 0
            del self.unsent[:sent]
        except BlockingIOError:
            pass  # the next beat or message tries again
        except OSError:
            return False
        return True

    # The caller's side

    def introduce(self, hello: Dict[str, Any], place: int) -> None:
        """Answer the called side's nonce."""
        self.theirs = str(hello["nonce"])
        mine = proof(self.key, "node", self.theirs, self.nonce, place)
        self.send({"kind": "node", "place": place, "nonce": self.nonce, "proof": mine})

    def check_answer(self, answer: Dict[str, Any], place: int) -> None:
        """Does the called side know the key?

        Raises:
            ProtocolError: no.
        """
        about = int(answer["place"]) if answer["kind"] == "elsewhere" else place
        self._compare(proof(self.key, str(answer["kind"]), self.nonce, self.theirs, about), answer)

    # The called side

    def greet(self) -> bool:
        """Say our nonce."""
        return self.send({"kind": "hello", "nonce": self.nonce})

    def check_node(self, message: Dict[str, Any]) -> int:
        """The caller's place, if it knows the key.

        Raises:
            ProtocolError: it does not.
        """
        place, self.theirs = int(message["place"]), str(message["nonce"])
        if message["kind"] != "node":
            raise ProtocolError("a stranger")
        self._compare(proof(self.key, "node", self.nonce, self.theirs, place), message)
        return place

    def welcome(self, place: int) -> bool:
        """Take the caller in."""
        self.place = place
        return self.send({"kind": "lead", "proof": proof(self.key, "lead", self.theirs, self.nonce, place)})

    def send_elsewhere(self, lead: int) -> bool:
        """Name another one to the caller."""
        mine = proof(self.key, "elsewhere", self.theirs, self.nonce, lead)
        return self.send({"kind": "elsewhere", "place": lead, "proof": mine})

    def _compare(self, expected: str, message: Dict[str, Any]) -> None:
        if not hmac.compare_digest(expected, str(message["proof"])):
            raise ProtocolError("it does not know the run's key")
