"""The requests and answers of the operations that build, prove, list and remove environments on a host."""

import re
from typing import Mapping, NamedTuple, Optional, Tuple

from ..schema.fields import Fields
from ..schema.record import by_key, checked, field, nullable, one_of, record

VERSION = re.compile(r"3\.[0-9]{1,2}\.[0-9a-z+]{1,20}")
MACHINE = re.compile(r"[A-Za-z0-9_]{1,40}")
MAX_VERSION_NUMBER = 200  # the largest number in a version: a tag is made for every number below it


def _libc_version(fields: Fields, name: str) -> Tuple[int, int]:
    major, minor = fields.pair(name)
    if max(major, minor) > MAX_VERSION_NUMBER:
        raise fields.wrong(name, (major, minor), "a version")
    return major, minor


@record
class BaseRequest(NamedTuple):
    """``environment_base``: which interpreter an environment would be built with."""

    setup: Tuple[str, ...] = nullable(Fields.texts, default=())
    python: Optional[str] = field(Fields.maybe_text, default=None)
    workdir: Optional[str] = field(Fields.maybe_text, default=None)


@record
class BaseInterpreter(NamedTuple):
    """What a host reports before an environment is chosen."""

    python: str = field(checked(lambda path: path.startswith("/") and "\n" not in path, "an absolute path"))
    version: str = field(checked(VERSION.fullmatch, "a version of Python 3"))
    implementation: str = field(one_of("cpython"))
    machine: str = field(checked(MACHINE.fullmatch, "a machine's name"))
    free_threaded: bool = field(Fields.flag)
    libc: str = field(one_of("glibc", "musl"))
    libc_version: Tuple[int, int] = field(_libc_version)
    left: Tuple[str, ...] = field(Fields.texts)  # variables of another environment that its setup lines set
    # the environments that it has: digest of the installed packages by id
    ready: Mapping[str, str] = field(by_key(Fields.text))


@record
class LacksRequest(NamedTuple):
    """``environment_lacks``: which wheels a host lacks; the answer is their digests."""

    wheels: Mapping[str, int] = field(by_key(Fields.number))  # their sizes by digest
    room: int = field(Fields.number)  # bytes of free disk that they and the environment need


@record
class BuildRequest(NamedTuple):
    """``environment_build``: an environment to build, unless it is complete."""

    ident: str = field(Fields.text)
    lock: str = field(Fields.text)  # its name for people
    project: str = field(Fields.text)  # the project's id
    python: str = field(Fields.text)  # the base interpreter
    setup: Tuple[str, ...] = field(Fields.texts)
    wheels: Mapping[str, str] = field(by_key(Fields.text))  # their digests by file
    requirements: str = field(Fields.any_text)  # with hashes
    uv: str = field(Fields.text)  # the digest of its wheel


@record
class BuildAnswer(NamedTuple):
    """The answer to ``environment_build``."""

    digest: str = field(Fields.text)  # of what is installed


@record
class ProofRequest(NamedTuple):
    """``environment_proof``: of which environment what is installed is reported."""

    python: str = field(Fields.text)  # its interpreter


@record
class EnvironmentProof(NamedTuple):
    """The environment of a lock file on a host; the digests are empty unless it is ``there``."""

    path: str = field(Fields.text)
    there: bool = field(Fields.flag)  # built completely
    built: str = field(Fields.text)  # digest of what was installed when it was built
    now: str = field(Fields.text)  # digest of what is installed, by its RECORDs as they are


@record
class EnvironmentReport(NamedTuple):
    """One environment, in the answer to ``environments``, which is a list of these."""

    ident: str = field(checked(str.isalnum, "a digest"))
    lock: str = field(Fields.text)  # its name for people; empty: it is incomplete, and may be being built right now
    bytes: int = field(Fields.number)
    # when each project, by its id, made it or last began a run in it: ns since the epoch
    used: Mapping[str, int] = field(by_key(Fields.number))
    live: Tuple[str, ...] = field(Fields.texts)  # runs that are live in it
    building: bool = field(Fields.flag)


@record
class RemoveRequest(NamedTuple):
    """``remove_environments``: remove these unless a run is live in them, and the wheels of none that remains."""

    idents: Tuple[str, ...] = field(Fields.texts)


@record
class RemoveAnswer(NamedTuple):
    """The answer to ``remove_environments``."""

    removed: int = field(Fields.number)  # environments
    bytes: int = field(Fields.number)  # disk space of those and of wheels
