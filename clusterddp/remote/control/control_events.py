"""What run control tells a supervisor: who came, who went, who said what, whose part has ended."""

from typing import NamedTuple, Union

from .messages import Message


class MemberJoined(NamedTuple):
    """The connection to a node is proved."""

    place: int


class Lost(NamedTuple):
    """The connection to a node ended; ``heard``: when it was last heard, by the monotonic clock."""

    place: int
    heard: float


class Said(NamedTuple):
    """A connected node's message."""

    place: int
    message: Message


class NodeDone(NamedTuple):
    """A node's part has ended for good: it said so, though its supervisor is no more."""

    place: int


Event = Union[MemberJoined, Lost, Said, NodeDone]
