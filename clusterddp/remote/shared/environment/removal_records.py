"""The requests and answers of the operations that list a host's environments, and remove them."""

from typing import NamedTuple, Tuple

from ..schema.fields import Fields
from ..schema.record import checked, field, record


@record
class EnvironmentReport(NamedTuple):
    """One environment, in the answer to ``environments``, which is a list of these."""

    ident: str = field(checked(str.isalnum, "a digest"))
    lock: str = field(Fields.text)  # its name for people; empty: it is incomplete, and may be being built right now
    project: str = field(Fields.text)  # the project's id
    bytes: int = field(Fields.number)
    used: int = field(Fields.number)  # when it was made, or a run last began in it: ns since the epoch; 0: unknown
    live: Tuple[str, ...] = field(Fields.texts)  # runs that are live in it
    building: bool = field(Fields.flag)


@record
class RemoveRequest(NamedTuple):
    """``remove_environments``: remove these unless a run is live in them, and the wheels of none that remains."""

    idents: Tuple[str, ...] = field(Fields.texts)


@record
class RemoveAnswer(NamedTuple):
    """The answer to ``remove_environments``."""

    removed: int = field(Fields.number)  # environments
    bytes: int = field(Fields.number)  # disk space of those and of wheels
