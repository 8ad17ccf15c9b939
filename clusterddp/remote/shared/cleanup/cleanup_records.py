"""The requests and answers of the operations that remove what a host has of ours.

``clean``, ``slurm_clean``: old runs; ``forget``: one run; ``holdings``, ``remove_everything``: all of an account.
"""

from typing import NamedTuple, Optional, Tuple

from ..schema.fields import Fields
from ..schema.record import field, many, record


@record
class CleanRequest(NamedTuple):
    """``clean``, ``slurm_clean``: remove old runs and helpers."""

    hosts: Tuple[str, ...] = field(Fields.texts)  # the inventory names of the host
    project: Optional[str] = field(Fields.maybe_text)  # its id; None or empty for none
    purge: bool = field(Fields.flag)  # remove all ended runs of the project, and then caches


@record
class PathLeft(NamedTuple):
    """A path that was not removed, and the reason."""

    path: str = field(Fields.text)
    why: str = field(Fields.text)


@record
class UnusedWorkdir(NamedTuple):
    """A synced workdir that no run on record uses."""

    path: str = field(Fields.text)
    days: int = field(Fields.number)  # since the last sync


@record
class CleanAnswer(NamedTuple):
    """What was removed on a host, and what is left there."""

    spools: int = field(Fields.number)  # how many were removed
    bytes: int = field(Fields.number)  # disk space of those and of the run dirs
    run_dirs: int = field(Fields.number)  # how many were removed
    helpers: int = field(Fields.number)  # how many copies of ours were removed
    kept: Tuple[str, ...] = field(Fields.texts)  # ended runs of the project that still have processes here
    workdirs: Tuple[UnusedWorkdir, ...] = field(many(UnusedWorkdir))
    nothing_left: bool = field(Fields.flag)  # whether nothing else of ours is left
    warm: bool = field(Fields.flag, default=False)  # whether a warm server was ended
    # how many of the host's runs (a login host's: of all nodes) stay on record, without those in ``kept``
    runs_left: int = field(Fields.number, default=0)
    left: Tuple[PathLeft, ...] = field(many(PathLeft), default=())  # run dirs that could not be removed


@record
class ForgetRequest(NamedTuple):
    """``forget``: remove the spools of one run once its supervisors have exited."""

    run: str = field(Fields.text)
    hosts: Tuple[str, ...] = field(Fields.texts)  # the inventory names of the host


@record
class ForgetAnswer(NamedTuple):
    """The answer to ``forget``."""

    kept: bool = field(Fields.flag)  # whether processes are left, and therefore the spool too


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
class EverythingAnswer(NamedTuple):
    """The answer to ``remove_everything``."""

    removed: Tuple[str, ...] = field(Fields.texts)  # folders of which nothing is left
    bytes: int = field(Fields.number)  # disk space of all that was removed
    left: Tuple[PathLeft, ...] = field(many(PathLeft))
