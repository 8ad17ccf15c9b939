"""The records of a push (``push_check``, ``push_apply``) and of a pull (``pull_list``, ``pull_read``)."""

from typing import Any, List, Mapping, NamedTuple, Optional, Sequence, Tuple

from ..schema.fields import Fields
from ..schema.record import bulk, by_key, field, record

UNREADABLE = "cannot be read"  # the reason for a skipped file begins so, if it should have been copied


@record
class PushRequest(NamedTuple):
    """Files that are to be put into a folder on a host, for ``push_check`` and ``push_apply``."""

    workdir: str = field(Fields.text)
    dest: str = field(Fields.text)  # the folder: absolute, from ``~/``, or below the workdir
    digest: str = field(Fields.text)  # of the manifest
    manifest: int = field(Fields.number)  # bytes of the manifest
    chunk_lists: int = field(Fields.number)  # bytes of the lists of chunks that follow it
    overwrite: bool = field(Fields.flag, default=False)  # files that differ are replaced, whoever wrote them
    links: Mapping[str, str] = field(by_key(Fields.text), default={})  # path in the workdir → data on this host
    spread: bool = field(Fields.flag, default=False)  # chunks come from other hosts too


@record
class PushCheck(NamedTuple):
    """The answer of ``push_check``: what this host lacks."""

    root: str = field(Fields.text)  # the folder's absolute path
    shared: Optional[str] = field(Fields.maybe_text)  # a name for it where hosts may share it
    ready: bool = field(Fields.flag)  # everything is there
    lacking: Sequence[str] = bulk(Fields.long_texts)  # digests of chunks


@record
class Pushed(NamedTuple):
    """The answer of ``push_apply``; where the host has changed meanwhile it is a ``HostChanged`` instead."""

    sent: int = field(Fields.number)  # files that were put in place
    kept: Tuple[Tuple[str, str], ...] = field(Fields.text_pairs, default=())  # path, other name of what was there


@record
class PullRequest(NamedTuple):
    """A question for the files below a path, or for those of a workdir that are new since a run's start."""

    workdir: str = field(Fields.text)
    path: str = field(Fields.text)  # below the workdir, from ``~/``, or absolute
    run: str = field(Fields.text, default="")  # whose new files are meant, in its workdir; empty: all files
    look: bool = field(Fields.flag, default=False)  # only whether the path exists
    bytecode: bool = field(Fields.flag, default=False)  # with Python's bytecode


@record
class PullList(NamedTuple):
    """The answer of ``pull_list``: what is at the path."""

    there: bool = field(Fields.flag)  # there is anything
    folder: bool = field(Fields.flag)  # it is a folder; else one file
    root: str = field(Fields.text)  # the absolute path of the folder that the entries are below
    shared: Optional[str] = field(Fields.maybe_text)  # a name for that folder where hosts may share it
    entries: Sequence[Any] = bulk(Fields.long_list)  # of a manifest, not checked yet
    chunks: Mapping[str, List[str]] = bulk(Fields.raw)  # content → digests, where it has several chunks; not checked
    skipped: Tuple[Tuple[str, str], ...] = field(Fields.text_pairs)  # path, why it is left out
    others: Tuple[str, ...] = field(Fields.texts)  # other runs that wrote there too


@record
class ChunksWanted(NamedTuple):
    """What ``pull_read`` is asked to send."""

    root: str = field(Fields.text)
    chunks: Sequence[Any] = bulk(Fields.long_list)  # ``[path, offset, bytes]`` each
    compress: bool = field(Fields.flag)
