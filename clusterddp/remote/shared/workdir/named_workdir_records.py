"""The requests and answers of the operations that list the ``--workdir NAME`` folders on a host, and remove them."""

from typing import NamedTuple, Tuple

from ..cleanup.cleanup_records import PathLeft
from ..schema.fields import Fields
from ..schema.record import field, many, record


@record
class NamedWorkdirsRequest(NamedTuple):
    """``workdirs_beside``: list the folders beside a workdir."""

    workdir: str = field(Fields.text)


@record
class NamedWorkdir(NamedTuple):
    """One folder beside a workdir."""

    path: str = field(Fields.text)
    ident: str = field(Fields.text)  # the same on all hosts that share the folder
    bytes: int = field(Fields.number)  # the disk space it takes
    written: int = field(Fields.number)  # the newest file's mtime in ns, by the file server's clock; 0: it has no file
    live: Tuple[str, ...] = field(Fields.texts)  # the runs that are live in it


@record
class NamedWorkdirs(NamedTuple):
    """The answer to ``workdirs_beside``."""

    folders: Tuple[NamedWorkdir, ...] = field(many(NamedWorkdir))


@record
class RemoveWorkdirsRequest(NamedTuple):
    """``remove_workdirs``: remove those of ``paths`` that are beside the workdir and in which no run is live."""

    workdir: str = field(Fields.text)
    paths: Tuple[str, ...] = field(Fields.texts)
    stopped: Tuple[str, ...] = field(Fields.texts)  # runs whose supervisors are about to exit: they are waited for


@record
class RemoveWorkdirsAnswer(NamedTuple):
    """The answer to ``remove_workdirs``."""

    removed: Tuple[str, ...] = field(Fields.texts)  # paths
    bytes: int = field(Fields.number)  # the disk space they took
    kept: Tuple[PathLeft, ...] = field(many(PathLeft))
