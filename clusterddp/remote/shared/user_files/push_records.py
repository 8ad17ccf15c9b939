"""The records of a push: what ``push_check`` and ``push_apply`` are asked, and what they answer."""

from typing import Any, Mapping, NamedTuple, Optional, Sequence

from ..schema.fields import Fields
from ..schema.record import bulk, by_key, field, read_record, record


@record
class PushRequest(NamedTuple):
    """Files that are to be put into a folder on a host. Both operations take it."""

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


def read_push_check(data: Any) -> PushCheck:
    """Read a host's answer; raises DamagedError."""
    return read_record(PushCheck, data, "push")
