"""The records of the operations on torchruns by hand: ``election`` and ``stray_ranks``."""

from typing import Mapping, NamedTuple, Optional, Tuple

from ..schema.fields import Fields
from ..schema.record import by_key, field, many, nested, record
from .facts_records import PythonQuery


@record
class ElectionRequest(NamedTuple):
    """The endpoints (names, addresses) of which torch is asked whether they are this host."""

    job: PythonQuery = field(nested(PythonQuery))
    python: str = field(Fields.text)  # the training interpreter that was found
    endpoints: Tuple[str, ...] = field(Fields.texts)
    torch: Optional[str] = field(Fields.maybe_text, default=None)  # the folder of its torch


@record
class Election(NamedTuple):
    """Whether torch considers an endpoint to be this host; with an error, nothing is known."""

    matches: Mapping[str, bool] = field(by_key(Fields.flag))
    error: Optional[str] = field(Fields.maybe_text, default=None)


@record
class StrayRank(NamedTuple):
    """A live worker of a torchrun that clusterddp did not start."""

    pid: int = field(Fields.number)
    rank: int = field(Fields.number)
    world_size: int = field(Fields.number)


@record
class StrayRanks(NamedTuple):
    """The answer of ``stray_ranks``: workers without their descendants."""

    ranks: Tuple[StrayRank, ...] = field(many(StrayRank))
