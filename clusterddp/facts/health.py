"""A host's state beyond its facts (disks, limits, names, ports), checked field by field when read from its answer."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any

from clusterddp.facts.read_facts import Fields, facts_of, read_as

if TYPE_CHECKING:
    from collections.abc import Mapping


@dataclass(frozen=True, kw_only=True, slots=True)
class FolderDisk:
    """The file system that holds a folder; with an ``error`` only the path is valid."""

    path: str
    filesystem: str = ""
    network: bool = False
    total_bytes: int = 0
    free_bytes: int = 0
    inodes: Annotated[int, _unsigned] = 0  # 0: the file system does not count inodes
    free_inodes: Annotated[int, _unsigned] = 0
    writable: bool = True
    error: str | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Lookup:
    """Result of ``getaddrinfo(name)`` on one host: unique addresses, or the resolver's error text."""

    addresses: tuple[str, ...] = ()
    error: str | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class PortOwner:
    """The owner and the command of a process."""

    user: str
    command: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Write:
    """The time to write and fsync a small file, in ms; None, with an ``error``, if that failed."""

    ms: int | None = None
    error: str | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class LoginPython:
    """The Python that a login shell finds (None if none), and whether it is the job's."""

    python: Annotated[str | None, Fields.maybe_path] = None
    same: bool = False
    error: str | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Cgroup:
    """The tightest limits of the control groups that the helper runs in, and the memory left; None means no limit."""

    memory_bytes: int | None = None
    memory_left: int | None = None
    cpu_thousandths: int | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Hca:
    """One InfiniBand or RoCE port."""

    device: str
    port: int
    state: str  # as the kernel names it: ACTIVE, INIT, DOWN …
    rate_gbit: int | None
    link_layer: str  # "InfiniBand", or "Ethernet" for RoCE
    gids: int  # number of GID entries in use
    roce_index: int | None  # the first GID for RoCE v2 over IPv4

    def __str__(self) -> str:
        return f"{self.device}:{self.port}"  # as NCCL_IB_HCA spells it


@dataclass(frozen=True, kw_only=True, slots=True)
class Health:
    """A host's state. ``limits`` are (soft, hard), None for no limit; ``folders``: state, workdir, tmp, shm."""

    limits: Mapping[str, tuple[int | None, int | None]]
    available_bytes: int | None
    infiniband: bool
    hcas: tuple[Hca, ...]
    taken: tuple[int, ...]  # ports of clusterddp_ports on which a program listens
    folders: Mapping[str, FolderDisk]
    names: Mapping[str, Lookup]
    owners: Annotated[Mapping[int, PortOwner], _owners]  # by pid: those of the requested processes that are visible
    writes: Mapping[str, Write] = field(default_factory=dict)  # in ``state``, ``workdir``
    paths: Mapping[str, bool] = field(default_factory=dict)  # whether the paths in the job's environment exist
    locks: Annotated[Mapping[str, int], _locks] = field(
        default_factory=dict
    )  # lock files of torch extension builds: path → age in seconds
    code: tuple[str, ...] | None = ()  # files of the project that were changed since their sync; None: no answer
    login: LoginPython | None = None  # None: not tried
    cgroup: Cgroup | None = None

    @classmethod
    def from_json(cls, host: str, data: Any) -> Health:
        """Read the result of a host's ``health`` operation; ``HelperError`` if it is damaged."""
        return read_as(cls, facts_of(host, data))


def _unsigned(fields: Fields, name: str) -> int:
    return fields.number(name, (1 << 64) - 1)


def _owners(fields: Fields, name: str) -> dict[int, PortOwner]:
    owners = fields.mapping(name, lambda one, pid: read_as(PortOwner, one.part(pid)))
    return {int(pid): one for pid, one in owners.items() if pid.isdecimal()}


def _locks(fields: Fields, name: str) -> dict[str, int]:
    return dict(fields.each(name, lambda one: (one.text("path"), one.number("age_s"))))
