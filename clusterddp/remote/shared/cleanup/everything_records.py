"""The requests and answers of ``holdings`` and ``remove_everything``, for all that an account has of ours on a host."""

from typing import NamedTuple, Tuple

from ..schema.fields import Fields
from ..schema.record import field, many, record


@record
class HoldingsRequest(NamedTuple):
    """``holdings``: list all that the account has."""

    workdir: str = field(Fields.text)  # the project's; empty for none


@record
class SizedFolder(NamedTuple):
    """A folder, with the disk space it takes, or how many of its files were pushed."""

    path: str = field(Fields.text)
    size: int = field(Fields.number)


@record
class ActiveRun(NamedTuple):
    """A live run; an empty text for what the host does not know."""

    run: str = field(Fields.text)
    label: str = field(Fields.text)  # the project's name
    operator: str = field(Fields.text)


@record
class WorkdirHeld(NamedTuple):
    """A workdir on a host."""

    path: str = field(Fields.text)
    ident: str = field(Fields.text)  # its random identifier, the same on all hosts that share the folder
    bytes: int = field(Fields.number)  # the disk space it takes
    own: int = field(Fields.number)  # how many of its files are not as a sync left them
    own_bytes: int = field(Fields.number)  # the total size of those files
    largest: Tuple[str, ...] = field(Fields.texts, default=())  # the largest of those files
    live: Tuple[str, ...] = field(Fields.texts, default=())  # the live runs that use it


@record
class HoldingsAnswer(NamedTuple):
    """All that a host holds of ours in an account, of all projects."""

    states: Tuple[SizedFolder, ...] = field(many(SizedFolder))  # state folders
    runs: int = field(Fields.number)  # how many are on record
    live: Tuple[ActiveRun, ...] = field(many(ActiveRun))
    workdirs: Tuple[WorkdirHeld, ...] = field(many(WorkdirHeld))
    pushed: Tuple[SizedFolder, ...] = field(many(SizedFolder))  # folders outside of workdirs that hold pushed files


@record
class ShownWorkdir(NamedTuple):
    """A workdir that the user was shown."""

    path: str = field(Fields.text)
    ident: str = field(Fields.text)


@record
class EverythingRequest(NamedTuple):
    """``remove_everything``: remove the workdirs that were shown, and the state folders."""

    workdir: str = field(Fields.text)  # the project's; empty for none
    shown: Tuple[ShownWorkdir, ...] = field(many(ShownWorkdir))


@record
class PathLeft(NamedTuple):
    """A path that stays."""

    path: str = field(Fields.text)
    why: str = field(Fields.text)


@record
class EverythingAnswer(NamedTuple):
    """The answer to ``remove_everything``."""

    removed: Tuple[str, ...] = field(Fields.texts)  # folders of which nothing is left
    bytes: int = field(Fields.number)  # disk space of all that was removed
    left: Tuple[PathLeft, ...] = field(many(PathLeft))
