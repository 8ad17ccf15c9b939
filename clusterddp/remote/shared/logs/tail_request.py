"""The request of the operation ``tail``; its frames are in logs/log_frames.py."""

from typing import Mapping, NamedTuple, Optional, Tuple

from ..schema.fields import Fields
from ..schema.record import by_key, field, maybe, nullable, one_of, record


@record
class TailRequest(NamedTuple):
    """Which lines of one node's logs are sent, and how."""

    spool: str = field(Fields.text)
    offsets: Mapping[str, int] = nullable(by_key(Fields.number), default={})  # where to go on, by file; else its start
    follow: bool = field(Fields.flag, default=False)  # go on until the run has ended
    stream: str = field(one_of("out", "err", "both"), default="both")
    ranks: Optional[Tuple[int, ...]] = field(maybe(Fields.numbers), default=None)  # None: all
    local_ranks: Optional[Tuple[int, ...]] = field(maybe(Fields.numbers), default=None)
    agent: bool = field(Fields.flag, default=False)  # the agent's own output too
    since: Optional[int] = field(Fields.maybe_integer, default=None)  # ns by the operator's clock
    until: Optional[int] = field(Fields.maybe_integer, default=None)
    grep: Optional[str] = field(Fields.maybe_text, default=None)  # a regular expression
    tail: Optional[int] = field(Fields.maybe_number, default=None)  # so many last lines of each worker only
    timed: bool = field(Fields.flag, default=False)  # every chunk carries the time of its lines
    partials: bool = field(Fields.flag, default=False)  # unfinished lines too, once they rest
    teardown: bool = field(Fields.flag, default=True)  # the agent's lines that follow an end of its workers too
    ordered: bool = field(Fields.flag, default=True)  # stdout and stderr of a worker in the order of writing
