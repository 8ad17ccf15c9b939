"""What the doctor asks of a host beyond its facts, as frozen values; every field is checked as those of facts are.

Not here: asking (remote/probes/health.py), judging (clusterddp/checks).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from clusterddp.facts.fields import Fields, facts_of

if TYPE_CHECKING:
    from collections.abc import Mapping


@dataclass(frozen=True, kw_only=True, slots=True)
class Folder:
    """The file system below a folder; with an ``error`` nothing but the path is meant."""

    path: str
    filesystem: str = ""
    network: bool = False
    total_bytes: int = 0
    free_bytes: int = 0
    inodes: int = 0  # 0: the file system has no such number
    free_inodes: int = 0
    writable: bool = True
    error: str | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Lookup:
    """What a host takes a name for."""

    addresses: tuple[str, ...] = ()
    error: str | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Owner:
    """Whose a process is."""

    user: str
    command: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Write:
    """A small file really written: until it was on disk, in ms; None where it could not be, with the ``error``."""

    ms: int | None = None
    error: str | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Login:
    """The Python that a login shell finds (None: none), and whether it is the job's."""

    python: str | None = None
    same: bool = False
    error: str | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Cgroup:
    """The tightest limits of the control groups we are in, and what is left of the memory; None: there is none."""

    memory_bytes: int | None = None
    memory_left: int | None = None
    cpu_thousandths: int | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Hca:
    """One InfiniBand or RoCE port."""

    device: str
    port: int
    state: str  # the kernel's word: ACTIVE, INIT, DOWN …
    rate_gbit: int | None
    link_layer: str  # InfiniBand, or Ethernet: RoCE
    gids: int  # entries in use
    roce_index: int | None  # the first GID for RoCE v2 over IPv4

    def __str__(self) -> str:
        return f"{self.device}:{self.port}"  # as NCCL_IB_HCA spells it


@dataclass(frozen=True, kw_only=True, slots=True)
class Health:
    """Limits are (soft, hard), None is no limit; folders by ``state``, ``workdir``, ``tmp``, ``shm``."""

    limits: Mapping[str, tuple[int | None, int | None]]
    available_bytes: int | None
    infiniband: bool
    hcas: tuple[Hca, ...]
    taken: tuple[int, ...]  # ports of clusterddp_ports on which somebody listens
    folders: Mapping[str, Folder]
    names: Mapping[str, Lookup]
    owners: Mapping[int, Owner]  # of the processes that were asked about, those that can be seen
    writes: Mapping[str, Write] = field(default_factory=dict)  # in ``state``, ``workdir``
    paths: Mapping[str, bool] = field(default_factory=dict)  # whether what the job's environment names is there
    locks: Mapping[str, int] = field(default_factory=dict)  # of extensions being built: path, age in seconds
    code: tuple[str, ...] | None = ()  # the project's files that somebody changed since their sync; None: no answer
    login: Login | None = None  # None: not tried
    cgroup: Cgroup | None = None

    @classmethod
    def from_json(cls, host: str, data: Any) -> Health:
        """Health from the result of a host's ``health`` operation.

        Raises:
            HelperError: a field is missing or no value of its kind.
        """
        fields = facts_of(host, data)
        owners = fields.mapping("owners", lambda one, key: _owner(one.part(key)))
        return cls(
            limits=fields.mapping("limits", _limit),
            available_bytes=fields.maybe_number("available_bytes"),
            infiniband=fields.flag("infiniband"),
            hcas=fields.each("hcas", _hca),
            taken=fields.numbers("taken"),
            folders=fields.mapping("folders", lambda one, key: _folder(one.part(key))),
            names=fields.mapping("names", lambda one, key: _lookup(one.part(key))),
            owners={int(pid): one for pid, one in owners.items() if pid.isdecimal()},
            writes=fields.mapping("writes", lambda one, key: _write(one.part(key))),
            paths=fields.mapping("paths", lambda one, path: one.flag(path)),
            locks=dict(fields.each("locks", lambda one: (one.text("path"), one.number("age_s")))),
            code=fields.texts("code") if fields.given("code") else None,
            login=_login(fields.part("login")) if fields.given("login") else None,
            cgroup=_cgroup(fields.part("cgroup")),
        )


def _limit(fields: Fields, name: str) -> tuple[int | None, int | None]:
    soft, hard = fields.maybe_numbers(name, 2)
    return soft, hard


def _folder(fields: Fields) -> Folder:
    return Folder(
        path=fields.text("path"),
        filesystem=fields.text("filesystem"),
        network=fields.flag("network"),
        total_bytes=fields.number("total_bytes"),
        free_bytes=fields.number("free_bytes"),
        inodes=fields.number("inodes", (1 << 64) - 1),
        free_inodes=fields.number("free_inodes", (1 << 64) - 1),
        writable=fields.flag("writable"),
        error=fields.maybe_text("error"),
    )


def _write(fields: Fields) -> Write:
    return Write(ms=fields.maybe_number("ms"), error=fields.maybe_text("error"))


def _login(fields: Fields) -> Login:
    return Login(python=fields.maybe_path("python"), same=fields.flag("same"), error=fields.maybe_text("error"))


def _cgroup(fields: Fields) -> Cgroup:
    return Cgroup(
        memory_bytes=fields.maybe_number("memory_bytes"),
        memory_left=fields.maybe_number("memory_left"),
        cpu_thousandths=fields.maybe_number("cpu_thousandths"),
    )


def _hca(fields: Fields) -> Hca:
    return Hca(
        device=fields.text("device"),
        port=fields.number("port"),
        state=fields.text("state"),
        rate_gbit=fields.maybe_number("rate_gbit"),
        link_layer=fields.text("link_layer"),
        gids=fields.number("gids"),
        roce_index=fields.maybe_number("roce_index"),
    )


def _lookup(fields: Fields) -> Lookup:
    return Lookup(addresses=fields.texts("addresses"), error=fields.maybe_text("error"))


def _owner(fields: Fields) -> Owner:
    return Owner(user=fields.text("user"), command=fields.text("command"))
