"""The events of run control for its supervisor: connections, disconnections, messages, parts that have ended."""

from typing import NamedTuple, Union

from .messages import Message


class MemberJoined(NamedTuple):
    """A node is connected, and has proved that it knows the key."""

    member: int


class Lost(NamedTuple):
    """The connection to a node ended; ``received_at``: when its last message came, by the boot clock."""

    member: int
    received_at: float


class MessageReceived(NamedTuple):
    """A connected node sent a message."""

    member: int
    message: Message


class NodeDone(NamedTuple):
    """A node's part has ended permanently: its fence reports so after the supervisor's end."""

    member: int


Event = Union[MemberJoined, Lost, MessageReceived, NodeDone]
