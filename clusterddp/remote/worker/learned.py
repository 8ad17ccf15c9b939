"""What a project's last run had imported at its end, as this host keeps it for the next: names, and no code.

    <state>/learned/HOST/KEY.json    0600; KEY is made from the workdir

A worker writes the names of its modules to its spool (``imported``, by worker/hook/sitecustomize.py). What is made of
them, and which of them a fork server may import, is decided in worker/learning.py. Both files are read whatever their
bytes are. Pure but for ``imported_in``, ``find`` and ``keep``.
"""

import hashlib
import os
from typing import Any, List, NamedTuple, Optional, Tuple

from ..shared.fields import Fields
from ..shared.records import Readers, parsed, read_record, records, written
from ..system.bootstrap import private_folder, write_json

IMPORTED = "imported"  # in the spool
LONGEST = 4 << 20  # bytes of either file
MOST = 20000  # modules


class Package(NamedTuple):
    """A top-level package of an installed distribution.

    Attributes:
        name: Its name in an import.
        modules: It and those inside that were imported, in that order.
        left_out: Why it cannot be imported before a fork; empty: it can.
        reads: Variables that it reads when it is imported.
        asks: Top-level names of modules that it looks for.
        clash: Why this project cannot have it imported before a fork, though others might.
    """

    name: str
    modules: Tuple[str, ...]
    left_out: str = ""
    reads: Tuple[str, ...] = ()
    asks: Tuple[str, ...] = ()
    clash: str = ""

    @property
    def reason(self) -> str:
        """Why it is not imported before a fork; empty if it is."""
        return self.left_out or self.clash


class Learned(NamedTuple):
    """What is known of a project on this host.

    Attributes:
        workdir: The project's, here.
        folders: The first ones in its scripts' search path.
        secrets: Names of its runs' secrets.
        packages: In the order of their imports.
        named: Those of them that the project's own files name.
        tried: A digest of all that the packages' verdicts hang on.
    """

    workdir: str
    folders: Tuple[str, ...] = ()
    secrets: Tuple[str, ...] = ()
    packages: Tuple[Package, ...] = ()
    named: Tuple[str, ...] = ()
    tried: str = ""

    @property
    def wanted(self) -> Tuple[Package, ...]:
        """What a fork server imports."""
        return tuple(one for one in self.packages if not one.reason)


_PACKAGE: Readers = {
    "name": Fields.text, "modules": Fields.texts, "left_out": Fields.text, "reads": Fields.texts, "asks": Fields.texts,
    "clash": Fields.text,
}  # fmt: skip
_LEARNED: Readers = {
    "workdir": Fields.text, "folders": Fields.texts, "secrets": Fields.texts, "packages": records(Package, _PACKAGE),
    "named": Fields.texts, "tried": Fields.text,
}  # fmt: skip


def decode(data: bytes) -> Learned:
    """What ``keep`` has written.

    Raises:
        ValueError: it is none; nothing else.
    """
    return parsed(data, _read)


def _read(data: Any) -> Learned:
    found: Learned = read_record(Learned, _LEARNED, data, "learned")
    for package in found.packages:
        if not all(_is_inside(name, package.name) for name in package.modules):
            raise ValueError("%r has modules of another" % package.name)
    return found


def decode_imported(data: bytes) -> List[str]:
    """A worker's modules, in the order of their imports; what is no module's name is passed over."""
    lines = data.decode("utf-8", "replace").split("\n")[:MOST]
    return list(dict.fromkeys(line for line in lines if _is_inside(line, line.partition(".")[0])))


def _is_inside(name: str, package: str) -> bool:
    return all(part.isidentifier() for part in name.split(".")) and name.partition(".")[0] == package


def key_of(workdir: str) -> str:
    """A project's name on this host."""
    return hashlib.sha256(os.fsencode(workdir)).hexdigest()[:32]


def path_of(state: str, key: str) -> str:
    """Where it is kept; other hosts may see the same state folder."""
    return os.path.join(state, "learned", os.uname().nodename, key + ".json")


def imported_in(spool: str) -> Optional[List[str]]:
    """What the last forked worker of a spool had imported at its end; None: none has told."""
    data = _content(os.path.join(spool, IMPORTED))
    return None if data is None else decode_imported(data)


def find(state: str, key: str) -> Optional[Learned]:
    """What is known of a project; None where that is nothing, or damaged."""
    data = _content(path_of(state, key))
    try:
        return None if data is None else decode(data)
    except ValueError:
        return None


def keep(state: str, learned: Learned) -> None:
    """Keep it for the next runs.

    Raises:
        OSError: the disk is full, or of another mind.
    """
    path = path_of(state, key_of(learned.workdir))
    private_folder(os.path.dirname(os.path.dirname(path)))
    private_folder(os.path.dirname(path))
    write_json(path, written(learned), durable=False)


def _content(path: str) -> Optional[bytes]:
    """A file's bytes; None where it is missing or too large."""
    try:
        with open(path, "rb") as stream:
            data = stream.read(LONGEST + 1)
    except OSError:
        return None
    return data if len(data) <= LONGEST else None
