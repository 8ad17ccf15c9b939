"""The facts that a host reports about itself; every field's type and shape is checked, so the rest may rely on it."""

from __future__ import annotations

import ipaddress
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

from clusterddp.facts.read_facts import MAX_LENGTH, Fields, facts_of, read_as
from clusterddp.remote.shared.names.ip_address import is_address
from clusterddp.remote.shared.probes.facts_records import PythonQuery
from clusterddp.remote.shared.verdict.failures import TORCH_NOT_IMPORTED_IN_TIME

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from clusterddp.inventory import HostEntry

_INTERFACE = re.compile(r"[^\s/\0]{1,15}")
_UUID = re.compile(r"GPU-[0-9A-Za-z-]{1,80}")


@dataclass(frozen=True, kw_only=True, slots=True)
class Interface:
    """One address of one network interface."""

    name: str
    address: str
    family: int  # 4 or 6
    prefix: int  # length of the network prefix in bits
    speed_mbit: int | None
    up: bool
    mtu: int

    @property
    def network(self) -> ipaddress.IPv4Network | ipaddress.IPv6Network:
        """The network that contains the address."""
        return ipaddress.ip_network(f"{self.address}/{self.prefix}", strict=False)

    @property
    def loopback(self) -> bool:
        """Whether it is a loopback address."""
        return ipaddress.ip_address(self.address).is_loopback

    @property
    def link_local(self) -> bool:
        """Whether it is a link-local address (169.254.0.0/16, fe80::/10)."""
        return ipaddress.ip_address(self.address).is_link_local


@dataclass(frozen=True, kw_only=True, slots=True)
class Addresses:
    """The part of a host's facts that says at which addresses other machines reach it."""

    boot: str
    ssh_address: str | None
    addresses: Annotated[tuple[Interface, ...], _interfaces]

    @classmethod
    def from_json(cls, host: str, data: Any) -> Addresses:
        """Read a host's answer; ``HelperError`` if it is damaged."""
        return read_as(cls, facts_of(host, data))


@dataclass(frozen=True, kw_only=True, slots=True)
class Gpu:
    """One GPU as ``nvidia-smi`` lists it."""

    index: int
    uuid: Annotated[str, _uuid]
    name: str
    memory_mib: int | None
    used_mib: int | None
    driver: str
    mig: bool
    processes: tuple[int, ...]  # pids of processes that compute on it, of any user


@dataclass(frozen=True, kw_only=True, slots=True)
class TorchFacts:
    """What the installed torch reports. With an ``import_error`` no other field is valid."""

    version: str = ""
    cuda: str | None = None
    hip: str | None = None
    nccl: str | None = None  # that torch was built with
    nccl_loaded: str | None = None  # the version of the library that importing torch loads
    nccl_library: str | None = None
    gloo: bool = False
    nccl_available: bool = False
    device_count: Annotated[int, _count] = 0
    device_names: tuple[str, ...] = ()
    device_error: str | None = None
    import_error: str | None = None

    @property
    def import_unfinished(self) -> bool:
        """Whether torch's import failed only because it took too long."""
        return bool(self.import_error and self.import_error.startswith(TORCH_NOT_IMPORTED_IN_TIME))


@dataclass(frozen=True, kw_only=True, slots=True)
class Facts:
    """A host's facts. ``clock_offset_ns`` is its clock minus the operator's, known to ± ``clock_error_ns``."""

    host: str
    hostname: str
    kernel: str
    cores: int  # hardware threads
    usable_cores: int  # after CPU affinity and control groups' quotas
    memory_bytes: int | None
    shm_bytes_free: int | None
    boot: str
    uid: int
    user: str
    home: str
    login_shell: str
    kill_user_processes: bool
    remove_ipc: bool
    ssh_address: str | None
    addresses: Annotated[tuple[Interface, ...], _interfaces]
    ephemeral_range: tuple[int, int]
    gpus: tuple[Gpu, ...]
    nvidia_error: str | None
    pci_nvidia: Annotated[int, _pci("nvidia")]
    pci_amd: Annotated[int, _pci("amd")]
    visible_devices: str | None  # CUDA_VISIBLE_DEVICES (or HIP's, ROCR's) where the host or its inventory sets it
    omp_num_threads: str | None  # OMP_NUM_THREADS after the setup lines and clusterddp_env
    environment: Mapping[str, str]  # torchrun's, NCCL's and gloo's variables after setup lines and clusterddp_env
    settings: Mapping[str, str]  # settings in NCCL's configuration files, and proxy variables
    folder_variables: Mapping[str, str]  # variables that name folders of temporary files and caches
    packages: Mapping[str, str] | None  # name → version; None: not asked, or no interpreter
    python: Annotated[str | None, Fields.maybe_path]
    python_version: str | None
    python_error: str | None
    torch: Annotated[TorchFacts | None, _torch]  # None if there is no interpreter
    torch_folder: Annotated[str | None, Fields.maybe_path]  # the folder of torch's files
    time_ns: int
    clock_offset_ns: int = 0
    clock_error_ns: int = 0

    @classmethod
    def from_json(cls, host: str, data: Any, *, clock_offset_ns: int = 0, clock_error_ns: int = 0) -> Facts:
        """Read the result of a host's ``facts`` operation; ``HelperError`` if it is damaged."""
        clock = {"clock_offset_ns": clock_offset_ns, "clock_error_ns": clock_error_ns}
        return read_as(cls, facts_of(host, data), host=host, **clock)

    @property
    def devices(self) -> int:
        """The number of GPUs that torch sees."""
        return self.torch.device_count if self.torch else 0


def python_query(entry: HostEntry) -> PythonQuery:
    """How a host finds the training interpreter."""
    return PythonQuery(tuple(entry.setup), dict(entry.env), entry.python, entry.workdir)


def _pci(vendor: str) -> Callable[[Fields, str], int]:
    return lambda fields, _: fields.part("pci_gpus").number(vendor)


def _count(fields: Fields, name: str) -> int:
    return fields.number(name, MAX_LENGTH)


def _uuid(fields: Fields, name: str) -> str:
    return fields.check(name, _UUID.fullmatch, "a GPU UUID")


def _interfaces(fields: Fields, name: str) -> tuple[Interface, ...]:
    return fields.each(name, _interface)


def _interface(fields: Fields) -> Interface:
    """Read one address of an interface; its family decides what is valid."""
    family = fields.number("family")
    return read_as(
        Interface,
        fields,
        name=fields.check("interface", _INTERFACE.fullmatch, "an interface name"),
        address=fields.check(
            "address",
            lambda text: is_address(text) and ipaddress.ip_address(text).version == family,
            "an address of its family",
        ),
        prefix=fields.number("prefix", 32 if family == 4 else 128),
    )


def _torch(fields: Fields, name: str) -> TorchFacts | None:
    """Read what torch reports; if its import failed, only the error."""
    if not fields.given(name):
        return None
    report = fields.part(name)
    error = report.maybe_text("import_error")
    return read_as(TorchFacts, report) if error is None else TorchFacts(import_error=error)
