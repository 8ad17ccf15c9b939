"""The requests and answers of ``clean`` and ``slurm_clean``, which remove old runs, and of ``forget``."""

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
    gone: bool = field(Fields.flag)  # whether nothing else of ours is left
    warm: bool = field(Fields.flag, default=False)  # whether a warm server was ended


@record
class ForgetRequest(NamedTuple):
    """``forget``: remove the spools of one run once its supervisors have exited."""

    run: str = field(Fields.text)
    hosts: Tuple[str, ...] = field(Fields.texts)  # the inventory names of the host


@record
class ForgetAnswer(NamedTuple):
    """The answer to ``forget``."""

    kept: bool = field(Fields.flag)  # whether processes are left, and therefore the spool too
