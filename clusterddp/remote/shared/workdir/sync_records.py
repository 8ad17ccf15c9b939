"""The records of a sync: what ``workdir_state``, ``data_state`` and ``sync_apply`` are asked, and what they answer."""

from typing import Any, List, Mapping, NamedTuple, Optional, Sequence, Tuple, Type, TypeVar

from ..schema.fields import Fields
from ..schema.record import bulk, by_key, field, nested, read_record, record
from .manifest import Entry

T = TypeVar("T")
_TYPES = (str, str, bool, int, str)  # of an entry's columns


@record
class SyncRequest(NamedTuple):
    """What the operator asks of a workdir. All three operations take it, and each reads what it needs."""

    workdir: str = field(Fields.text)
    digest: str = field(Fields.text)  # of the code; empty: the workdir is inspected, and not changed
    name: str = field(Fields.text, default="")  # of a folder beside the workdir to use instead
    made: bool = field(Fields.flag, default=False)  # a sync, no preview: what is missing is made, the workdir too
    folders: Tuple[str, ...] = field(Fields.texts, default=())  # to be made, for a worker's current folder
    links: Mapping[str, str] = field(by_key(Fields.text), default={})  # path in the workdir → data on this host
    known: Tuple[str, ...] = field(Fields.texts, default=())  # digests of manifests that the operator has
    prove: bool = field(Fields.flag, default=False)  # other code is checked file by file too
    # digest of the project's data; empty: it has none; None: data is left alone
    data: Optional[str] = field(Fields.maybe_text, default=None)
    take: str = field(Fields.text, default="")  # whose version of data wins where all three differ; empty: neither
    # What follows is known once the host has answered.
    base: str = field(Fields.text, default="")  # digest of the manifest here that ``manifest`` is a difference from
    edited: bool = field(Fields.flag, default=False)  # more has to be repaired than that difference
    reuse: bool = field(Fields.flag, default=False)  # chunks are not sent because they are here
    data_base: str = field(Fields.text, default="")  # as ``base``, of the data
    data_size: int = field(Fields.number, default=0)  # bytes of the data's manifest, at the end of ``manifest``
    manifest: int = field(Fields.number, default=0)  # bytes of the manifest that is sent
    chunk_lists: int = field(Fields.number, default=0)  # bytes of the lists of chunks that follow it
    spread: bool = field(Fields.flag, default=False)  # chunks come from other hosts too


@record
class StandingVersions(NamedTuple):
    """The host's own versions of the project's data, which stay; of each list at most 200."""

    versions: Tuple[Tuple[str, str], ...] = field(Fields.text_pairs, default=())  # path, content (empty: removed)
    news: Tuple[str, ...] = field(Fields.texts, default=())  # the paths that no answer has named before


@record
class DataThere(NamedTuple):
    """What a workdir holds of a project's data."""

    settled: bool = field(Fields.flag)  # the project's data has not changed since the last sync
    digest: str = field(Fields.text, default="")  # of the project's data at the last sync
    empty: bool = field(Fields.flag, default=False)  # the workdir holds nothing, so that all can be written
    standing: StandingVersions = field(nested(StandingVersions), default=StandingVersions())


def _entries(fields: Fields, name: str) -> List[Entry]:
    """Read a long list of entries, checked for their types alone: nothing is opened at their paths."""
    rows = fields.long_list(name)
    try:
        found = list(map(Entry._make, rows))
    except TypeError:
        raise fields.wrong(name, rows, "a list of entries") from None
    if any({type(entry[column]) for entry in found} - {kind} for column, kind in enumerate(_TYPES)):
        raise fields.wrong(name, rows, "a list of entries")
    return found


@record
class WorkdirState(NamedTuple):
    """The answer of ``workdir_state``. What follows ``data`` is sent where the workdir is not ready."""

    ready: bool = field(Fields.flag)  # it holds the code of the request's digest, proved, and its data
    digest: str = field(Fields.text)  # of the code there; empty: it is not as a sync wrote it, or not proved
    workdir: str = field(Fields.text)  # its absolute path
    live: Tuple[str, ...] = field(Fields.texts)  # runs that are live in it
    shared: Optional[str] = field(Fields.maybe_text)  # a name for it where other hosts may see it too
    notice: str = field(Fields.text)  # a line for the user; empty: none
    links: Tuple[str, ...] = field(Fields.texts)  # lines for the user
    data: DataThere = field(nested(DataThere))
    # the manifest, one of those known, that describes what is there but for ``have`` and ``missing``; empty: none
    base: str = field(Fields.text, default="")
    have: Sequence[Entry] = bulk(_entries, default=())
    missing: Sequence[str] = bulk(Fields.long_texts, default=())  # paths of ``base`` that are missing
    # digests of what is there besides: of large files, and of an interrupted sync
    chunks: Sequence[str] = bulk(Fields.long_texts, default=())


@record
class DataState(NamedTuple):
    """The answer of ``data_state``: what a sync would do with the project's data."""

    put: Sequence[str] = bulk(Fields.long_texts)  # the paths at which the project's version would be written
    new: Sequence[str] = bulk(Fields.long_texts)  # those of them where the host has nothing
    placed: Sequence[str] = bulk(Fields.long_texts)  # those of them whose content is there, so that only a mode is set
    conflicts: Sequence[str] = bulk(Fields.long_texts)  # the paths on which the user has to decide
    chunks: Sequence[str] = bulk(Fields.long_texts)  # digests of chunks that are here already


@record
class Synced(NamedTuple):
    """The answer of ``sync_apply``: what was done."""

    workdir: str = field(Fields.text)  # its absolute path
    digest: str = field(Fields.text)  # of the code there, proved
    sent: int = field(Fields.number)  # files that were put in place
    removed: int = field(Fields.number)  # files
    kept: Tuple[Tuple[str, str], ...] = field(Fields.text_pairs)  # the host's own versions: path, kept as
    notice: str = field(Fields.text)  # as of ``WorkdirState``
    links: Tuple[str, ...] = field(Fields.texts)
    standing: StandingVersions = field(nested(StandingVersions))


@record
class HostChanged(NamedTuple):
    """The answer in place of any other where the host has changed since the last: ask it again."""

    missing: Tuple[str, ...] = field(Fields.texts)  # some of the paths whose contents were not sent
    conflicts: Sequence[str] = bulk(Fields.long_texts, default=())  # paths on which the user has to decide first
    removed: int = field(Fields.number, default=0)  # what was done by then, as of ``Synced``, like the next
    kept: Tuple[Tuple[str, str], ...] = field(Fields.text_pairs, default=())


def read_unless_changed(kind: Type[T], data: Any) -> Optional[T]:
    """Read a host's answer, a record of class ``kind``; None where it has changed meanwhile. Raises DamagedError."""
    changed = Fields(data).there("missing")
    return read_record(kind, data, "sync") if not changed else None
