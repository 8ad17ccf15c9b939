"""The records of the operation ``stop``: what the operator asks, and what a host found and left of its nodes."""

from typing import Any, Mapping, NamedTuple, Optional, Tuple

from ..schema.fields import Fields
from ..schema.record import field, many, record
from .spool_records import LeftProcess

PROOF_TIMEOUT = 60.0  # seconds beyond the grace in which a host proves that nothing is left
CLEANUP_REASON = "the start failed on another host"


@record
class StopRequest(NamedTuple):
    """The order to end a run's nodes on one host."""

    run: str = field(Fields.text)
    hosts: Tuple[str, ...] = field(Fields.texts)  # the inventory names of the host
    grace: float = field(Fields.real)  # seconds from SIGTERM to SIGKILL
    reason: str = field(Fields.text)


@record
class NodeProof(NamedTuple):
    """What a stop found of one node, whose host may have several names and so several nodes."""

    host: str = field(Fields.text)
    found: int = field(Fields.number)  # processes
    killed: int = field(Fields.number)  # of these, those that needed SIGKILL
    survivors: Tuple[LeftProcess, ...] = field(many(LeftProcess))
    unknown: Tuple[str, ...] = field(Fields.texts)  # what could not be checked, one line each
    gpus: Optional[int] = field(Fields.maybe_number)  # NVIDIA GPUs that none of the processes uses; None: there is none
    exit: Mapping[str, Any] = field(Fields.raw, default={})  # its last exit record; empty: there is none


@record
class StopAnswer(NamedTuple):
    """What a stop found on one host."""

    nodes: Tuple[NodeProof, ...] = field(many(NodeProof))
    proved_empty: bool = field(Fields.flag)  # nothing is left, and all could be checked


def stop_answer(nodes: Tuple[NodeProof, ...]) -> StopAnswer:
    """Return the answer of a host with these nodes."""
    return StopAnswer(nodes, proved_empty=not any(node.survivors or node.unknown for node in nodes))
