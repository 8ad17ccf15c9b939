"""The records of a pull: what ``pull_list`` and ``pull_read`` are asked, and what ``pull_list`` answers."""

from typing import Any, List, Mapping, NamedTuple, Optional, Sequence, Tuple

from ..schema.fields import Fields
from ..schema.record import bulk, field, read_record, record


@record
class PullRequest(NamedTuple):
    """A question for the files below a path, or for those of a workdir that are new since a run's start."""

    workdir: str = field(Fields.text)
    path: str = field(Fields.text)  # below the workdir, from ``~/``, or absolute
    run: str = field(Fields.text, default="")  # whose new files are meant, in its workdir; empty: all files
    look: bool = field(Fields.flag, default=False)  # only whether the path exists


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


def read_pull_list(data: Any) -> PullList:
    """Read a host's answer; raises DamagedError."""
    return read_record(PullList, data, "pull")
