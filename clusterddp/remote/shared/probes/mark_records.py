"""The records of the operations ``mark``, ``marked`` and ``unmark``, which find the folders that hosts share."""

from typing import Mapping, NamedTuple, Tuple

from ..schema.fields import Fields
from ..schema.record import by_key, field, record


@record
class MarkRequest(NamedTuple):
    """The folders (name → path) into which a host puts its mark, or from which it removes it."""

    folders: Mapping[str, str] = field(by_key(Fields.text))
    nonce: str = field(Fields.text)


@record
class MarkedRequest(NamedTuple):
    """The folders (name → path) in which the marks of other hosts (host → nonce) are looked for."""

    folders: Mapping[str, str] = field(by_key(Fields.text))
    nonces: Mapping[str, str] = field(by_key(Fields.text))


@record
class FolderMarks(NamedTuple):
    """Whose marks are in a folder, by its name; a folder that does not answer is not there."""

    folders: Mapping[str, Tuple[str, ...]] = field(by_key(Fields.texts))
