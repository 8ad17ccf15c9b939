"""What a run writes down of itself when it starts: in every node's plan, in the project's index, in what hosts tell.

Pure. Unknown fields, a newer version's, are kept; all but ``hosts`` may be missing or null, as in an older version's.
"""

from typing import Any, Mapping, NamedTuple, Optional, Tuple

from ..schema.fields import Fields
from ..schema.record import Reader, Readers, maybe, read_record, record


class RunRecord(NamedTuple):
    """One run: what was started, by whom, where. Of secrets, and variables that look like one, no value."""

    hosts: Tuple[str, ...]  # that take part, in the order of their ranks
    run: str = ""
    name: Optional[str] = None
    script: Optional[str] = None
    module: bool = False
    argv: Tuple[str, ...] = ()  # the script's
    code: str = ""  # digest of what was synced; empty: no sync has filled the folder
    environment: Optional[str] = None  # digest of what was installed from a lock; None: the host's own interpreter
    git: Optional[Mapping[str, Any]] = None  # commit, dirty; None outside git
    operator: Optional[str] = None  # user@machine
    inventory: Optional[str] = None  # path
    limit: Optional[str] = None
    project: Optional[str] = None  # id
    label: Optional[str] = None  # the project's name
    gpus: Mapping[str, Tuple[str, ...]] = {}  # models by host
    versions: Mapping[str, Optional[str]] = {}
    subfolder: str = ""  # of the project, where the workers' folder is
    env: Tuple[str, ...] = ()  # names
    variables: Mapping[str, str] = {}  # values of those that the user or the inventory has set
    options: Optional[Mapping[str, Any]] = None  # of the command line, those not as by default
    secrets: Tuple[str, ...] = ()  # names
    max_restarts: int = 0
    relaunch: int = 0
    nproc: Optional[int] = None  # as asked for
    on_disconnect: Optional[str] = None
    started: Optional[int] = None  # ns, by the operator's clock
    world_size: Optional[int] = None
    nnodes: Optional[int] = None
    min_nodes: Optional[int] = None
    spares: Tuple[str, ...] = ()
    lost: Tuple[str, ...] = ()  # hosts of earlier attempts
    left_out: Tuple[str, ...] = ()  # hosts that were not ready and may join
    replaced: Mapping[str, str] = {}  # hosts that were off at the start, and the spares that took their places
    workdir: Optional[str] = None  # the name given to the folder
    workdirs: Mapping[str, str] = {}  # by host
    own_data: Mapping[str, Tuple[str, ...]] = {}  # by host: data of the project of which it had its own version
    launcher: Optional[str] = None
    array: Optional[str] = None  # an id that all runs of an array share
    more: Mapping[str, Any] = {}


def _or(default: Any, read: Reader) -> Reader:
    """The reader of a field that is as if missing where it is null."""
    return lambda fields, name: read(fields, name) if fields.given(name) else default


def _by_host(read: Reader) -> Reader:
    return _or({}, lambda fields, name: fields.mapping(name, read))


_TEXTS = _or((), Fields.texts)
_READERS: Readers = {
    "hosts": Fields.texts,
    "run": _or("", Fields.text),
    "name": Fields.maybe_text,
    "array": Fields.maybe_text,
    "script": Fields.maybe_text,
    "module": _or(False, Fields.flag),
    "argv": _TEXTS,
    "code": _or("", Fields.text),
    "environment": Fields.maybe_text,
    "git": maybe(Fields.raw),
    "operator": Fields.maybe_text,
    "inventory": Fields.maybe_text,
    "limit": Fields.maybe_text,
    "project": Fields.maybe_text,
    "label": Fields.maybe_text,
    "gpus": _by_host(Fields.texts),
    "versions": _by_host(Fields.maybe_text),
    "subfolder": _or("", Fields.text),
    "env": _TEXTS,
    "variables": _by_host(Fields.text),
    "options": maybe(Fields.raw),
    "secrets": _TEXTS,
    "max_restarts": _or(0, Fields.number),
    "relaunch": _or(0, Fields.number),
    "nproc": Fields.maybe_number,
    "on_disconnect": Fields.maybe_text,
    "started": Fields.maybe_number,
    "world_size": Fields.maybe_number,
    "nnodes": Fields.maybe_number,
    "min_nodes": Fields.maybe_number,
    "spares": _TEXTS,
    "lost": _TEXTS,
    "left_out": _TEXTS,
    "replaced": _by_host(Fields.text),
    "workdir": Fields.maybe_text,
    "workdirs": _by_host(Fields.text),
    "own_data": _by_host(Fields.texts),
    "launcher": Fields.maybe_text,
}


def read_run_record(data: Any) -> RunRecord:
    """A run's record from its JSON object; ``written`` gives that back.

    Raises:
        DamagedError: a field is missing or wrong.
    """
    return read_record(RunRecord, _READERS, data, "record")


READER: Reader = record(RunRecord, _READERS)  # of a field that holds a run's record
