"""The part of a host's inventory variables that its supervisor needs: it travels inside the node's plan. Pure."""

from typing import Any, Mapping, NamedTuple, Tuple

from ..schema.fields import Fields
from ..schema.record import field, record


@record
class HostSettings(NamedTuple):
    """The settings of one host that hold for each of its runs."""

    setup: Tuple[str, ...] = field(Fields.texts, default=())  # shell lines
    ports: Tuple[int, int] = field(Fields.pair, default=(0, 0))  # first and last that may be bound
    fork_server: bool = field(Fields.flag, default=False)
    warm: float = field(Fields.real, default=0.0)  # seconds that a warm server stays for the next run
    # packages that the fork server and the warm server import besides torch
    preload: Tuple[str, ...] = field(Fields.texts, default=())
    # paths below the workdir that a node which is new to an attempt gets from the others
    carry: Tuple[str, ...] = field(Fields.texts, default=())
    comm_trace: bool = field(Fields.flag, default=False)  # workers answer for their collective operations
    more: Mapping[str, Any] = {}
