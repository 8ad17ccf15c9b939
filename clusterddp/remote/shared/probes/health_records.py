"""The records of the operation ``health``: what the doctor asks of a host beyond its facts, and the host's answer."""

from typing import Dict, Mapping, NamedTuple, Optional, Tuple

from ..schema.fields import Fields
from ..schema.record import by_key, field, many, maybe, nested, record, record_in
from .network_records import KernelTable


def _unsigned(fields: Fields, name: str) -> int:
    return fields.number(name, (1 << 64) - 1)


_NONE_CHANGED: Optional[Tuple[str, ...]] = ()


def _limit(fields: Fields, name: str) -> Tuple[Optional[int], Optional[int]]:
    soft, hard = fields.items(name, lambda one: one.maybe_number("item"), 2)
    return soft, hard


@record
class HealthRequest(NamedTuple):
    """What is asked of a host's health; paths may begin with ``~``."""

    workdir: str = field(Fields.text)
    names: Tuple[str, ...] = field(Fields.texts)  # to be looked up
    ports: Tuple[int, int] = field(Fields.pair)  # the first and last of clusterddp_ports
    pids: Tuple[int, ...] = field(Fields.numbers)  # whose owners are asked for
    paths: Tuple[str, ...] = field(Fields.texts, default=())  # to check for existence
    code: str = field(Fields.text, default="")  # the project's workdir; empty if it was never synced
    tmp: Optional[str] = field(Fields.maybe_text, default=None)  # the job's TMPDIR
    extensions: Optional[str] = field(Fields.maybe_text, default=None)  # where the job's torch builds extensions
    login: bool = field(Fields.flag, default=False)  # whether a login shell is tried
    python: Optional[str] = field(Fields.maybe_text, default=None)  # the job's


@record
class FolderDisk(NamedTuple):
    """The file system that holds a folder; with an ``error`` only the path is valid."""

    path: str = field(Fields.text)
    filesystem: str = field(Fields.text, default="")
    network: bool = field(Fields.flag, default=False)
    free_bytes: int = field(Fields.number, default=0)
    inodes: int = field(_unsigned, default=0)  # 0: the file system does not count inodes
    free_inodes: int = field(_unsigned, default=0)
    writable: bool = field(Fields.flag, default=True)
    error: Optional[str] = field(Fields.maybe_text, default=None)


@record
class Lookup(NamedTuple):
    """Result of ``getaddrinfo(name)`` on one host: unique addresses, or the resolver's error text."""

    addresses: Tuple[str, ...] = field(Fields.texts, default=())
    error: Optional[str] = field(Fields.maybe_text, default=None)


@record
class PortOwner(NamedTuple):
    """The owner and the command of a process."""

    user: str = field(Fields.text)
    command: str = field(Fields.text)


@record
class Write(NamedTuple):
    """The time to write and fsync a small file, in ms; None, with an ``error``, if that failed."""

    ms: Optional[int] = field(Fields.maybe_number, default=None)
    error: Optional[str] = field(Fields.maybe_text, default=None)


@record
class LoginPython(NamedTuple):
    """The Python that a login shell finds (None if none), and whether it is the job's."""

    python: Optional[str] = field(Fields.maybe_path, default=None)
    same: bool = field(Fields.flag, default=False)
    error: Optional[str] = field(Fields.maybe_text, default=None)


@record
class Cgroup(NamedTuple):
    """The tightest limits of the control groups that the helper runs in, and the memory left; None means no limit."""

    memory_bytes: Optional[int] = field(Fields.maybe_number, default=None)
    memory_left: Optional[int] = field(Fields.maybe_number, default=None)
    cpu_thousandths: Optional[int] = field(Fields.maybe_number, default=None)


@record
class Hca(NamedTuple):
    """One InfiniBand or RoCE port."""

    device: str = field(Fields.text)
    port: int = field(Fields.number)
    state: str = field(Fields.text)  # as the kernel names it: ACTIVE, INIT, DOWN …
    rate_gbit: Optional[int] = field(Fields.maybe_number)
    link_layer: str = field(Fields.text)  # "InfiniBand", or "Ethernet" for RoCE
    gids: int = field(Fields.number)  # number of GID entries in use
    roce_index: Optional[int] = field(Fields.maybe_number)  # the first GID for RoCE v2 over IPv4: NCCL_IB_GID_INDEX

    def __str__(self) -> str:
        return "%s:%d" % (self.device, self.port)  # as NCCL_IB_HCA spells it


def _owners(fields: Fields, name: str) -> Dict[int, PortOwner]:
    owners = fields.mapping(name, lambda one, pid: record_in(one.part(pid), PortOwner))
    return {int(pid): one for pid, one in owners.items() if pid.isdecimal()}


@record
class Health(NamedTuple):
    """A host's state. ``limits`` are (soft, hard), None for no limit; ``folders``: state, workdir, tmp, shm."""

    limits: Mapping[str, Tuple[Optional[int], Optional[int]]] = field(by_key(_limit))
    available_bytes: Optional[int] = field(Fields.maybe_number)
    infiniband: bool = field(Fields.flag)
    hcas: Tuple[Hca, ...] = field(many(Hca))
    taken: Tuple[int, ...] = field(Fields.numbers)  # ports of clusterddp_ports on which a program listens
    folders: Mapping[str, FolderDisk] = field(by_key(nested(FolderDisk)))
    names: Mapping[str, Lookup] = field(by_key(nested(Lookup)))
    owners: Mapping[int, PortOwner] = field(_owners)  # by pid: those of the requested processes that are visible
    writes: Mapping[str, Write] = field(by_key(nested(Write)), default={})  # in ``state``, ``workdir``
    paths: Mapping[str, bool] = field(by_key(Fields.flag), default={})  # whether a path exists; not there: no answer
    locks: Mapping[str, int] = field(by_key(Fields.number), default={})  # of builds of torch extensions: path → age (s)
    code: Optional[Tuple[str, ...]] = field(maybe(Fields.texts), default=_NONE_CHANGED)  # files; None: no answer
    login: Optional[LoginPython] = field(maybe(nested(LoginPython)), default=None)  # None: not tried
    cgroup: Optional[Cgroup] = field(maybe(nested(Cgroup)), default=None)
    tables: Mapping[str, KernelTable] = field(by_key(nested(KernelTable)), default={})  # as in ``KernelCounters``
