"""The record of a run's start, kept in each node's plan and the project's index and reported by hosts. Pure.

Unknown fields of a newer version are kept; all but ``hosts`` may be missing or null, as an older version wrote them.
"""

from typing import Any, Mapping, NamedTuple, Optional, Tuple

from ..schema.fields import Fields
from ..schema.record import by_key, field, maybe, nullable, read_record, record


@record
class RunRecord(NamedTuple):
    """One run: what was started, by whom, where. It holds no value of a secret or of a variable that looks like one."""

    hosts: Tuple[str, ...] = field(Fields.texts)  # that take part, in the order of their ranks
    run: str = nullable(Fields.text, default="")
    name: Optional[str] = field(Fields.maybe_text, default=None)
    script: Optional[str] = field(Fields.maybe_text, default=None)
    module: bool = nullable(Fields.flag, default=False)
    argv: Tuple[str, ...] = nullable(Fields.texts, default=())  # the script's
    code: str = nullable(Fields.text, default="")  # digest of what was synced; empty: no sync has filled the folder
    # digest of what was installed from a lock; None: the host's own interpreter
    environment: Optional[str] = field(Fields.maybe_text, default=None)
    git: Optional[Mapping[str, Any]] = field(maybe(Fields.raw), default=None)  # commit, dirty; None outside git
    operator: Optional[str] = field(Fields.maybe_text, default=None)  # user@machine
    inventory: Optional[str] = field(Fields.maybe_text, default=None)  # path
    limit: Optional[str] = field(Fields.maybe_text, default=None)
    project: Optional[str] = field(Fields.maybe_text, default=None)  # id
    label: Optional[str] = field(Fields.maybe_text, default=None)  # the project's name
    gpus: Mapping[str, Tuple[str, ...]] = nullable(by_key(Fields.texts), default={})  # models by host
    versions: Mapping[str, Optional[str]] = nullable(by_key(Fields.maybe_text), default={})
    subfolder: str = nullable(Fields.text, default="")  # of the project, where the workers' folder is
    env: Tuple[str, ...] = nullable(Fields.texts, default=())  # names
    # values of those that the user or the inventory has set
    variables: Mapping[str, str] = nullable(by_key(Fields.text), default={})
    # of the command line, those not as by default
    options: Optional[Mapping[str, Any]] = field(maybe(Fields.raw), default=None)
    secrets: Tuple[str, ...] = nullable(Fields.texts, default=())  # names
    max_restarts: int = nullable(Fields.number, default=0)
    relaunch: int = nullable(Fields.number, default=0)
    nproc: Optional[int] = field(Fields.maybe_number, default=None)  # as asked for
    on_disconnect: Optional[str] = field(Fields.maybe_text, default=None)
    started: Optional[int] = field(Fields.maybe_number, default=None)  # ns, by the operator's clock
    world_size: Optional[int] = field(Fields.maybe_number, default=None)
    nnodes: Optional[int] = field(Fields.maybe_number, default=None)
    min_nodes: Optional[int] = field(Fields.maybe_number, default=None)
    spares: Tuple[str, ...] = nullable(Fields.texts, default=())
    lost: Tuple[str, ...] = nullable(Fields.texts, default=())  # hosts of earlier attempts
    left_out: Tuple[str, ...] = nullable(Fields.texts, default=())  # hosts that were not ready and may join
    # hosts that were off at the start, and the spares that took their places
    replaced: Mapping[str, str] = nullable(by_key(Fields.text), default={})
    workdir: Optional[str] = field(Fields.maybe_text, default=None)  # the name given to the folder
    workdirs: Mapping[str, str] = nullable(by_key(Fields.text), default={})  # by host
    # by host: data of the project of which it had its own version
    own_data: Mapping[str, Tuple[str, ...]] = nullable(by_key(Fields.texts), default={})
    launcher: Optional[str] = field(Fields.maybe_text, default=None)
    array: Optional[str] = field(Fields.maybe_text, default=None)  # an id that all runs of an array share
    more: Mapping[str, Any] = {}

    @property
    def array_and_index(self) -> Tuple[str, str]:
        """The array's name and this run's index in it, which form the run's name; both empty outside an array."""
        name, _, index = (self.name or "").rpartition(".") if self.array else ("", "", "")
        return name, index


def read_run_record(data: Any) -> RunRecord:
    """Read a run's record from its JSON object; ``to_fields`` is the inverse. Raises DamagedError."""
    return read_record(RunRecord, data, "record")
