"""Facts of a host as frozen values, read from its JSON.

A host's words are not trusted: every field's type and shape is checked here, so that the rest may rely on it.
Not here: judging facts (gpus.py, network.py), getting them (clusterddp/probe/network.py).
"""

from __future__ import annotations

import ipaddress
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from clusterddp.facts.fields import MOST, Fields, facts_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from clusterddp.inventory import HostEntry

_INTERFACE = re.compile(r"[^\s/\0]{1,15}")
_UUID = re.compile(r"GPU-[0-9A-Za-z-]{1,80}")


@dataclass(frozen=True, kw_only=True, slots=True)
class Interface:
    """One address of one network interface."""

    name: str
    address: str
    family: int  # 4 or 6
    prefix: int  # length of the network's part, in bits
    speed_mbit: int | None
    up: bool
    mtu: int

    @property
    def network(self) -> ipaddress.IPv4Network | ipaddress.IPv6Network:
        """The network the address lies in."""
        return ipaddress.ip_network(f"{self.address}/{self.prefix}", strict=False)

    @property
    def loopback(self) -> bool:
        """Whether it only reaches its own machine."""
        return ipaddress.ip_address(self.address).is_loopback

    @property
    def link_local(self) -> bool:
        """Whether it is an address of the card's own making, for its own cable alone."""
        return ipaddress.ip_address(self.address).is_link_local


@dataclass(frozen=True, kw_only=True, slots=True)
class Gpu:
    """One GPU as ``nvidia-smi`` lists it."""

    index: int
    uuid: str
    name: str
    memory_mib: int | None
    used_mib: int | None
    driver: str
    mig: bool
    processes: tuple[int, ...]  # pids that compute on it, of any user


@dataclass(frozen=True, kw_only=True, slots=True)
class TorchFacts:
    """What torch says of itself. With an ``import_error`` nothing else is meant."""

    version: str = ""
    cuda: str | None = None
    hip: str | None = None
    nccl: str | None = None  # that torch was built with
    nccl_loaded: str | None = None  # the version of the library that importing torch loads
    nccl_library: str | None = None
    gloo: bool = False
    nccl_available: bool = False
    device_count: int = 0
    device_names: tuple[str, ...] = ()
    device_error: str | None = None
    import_error: str | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Facts:
    """A host's facts. The clock's offset is the host's minus the operator's, in ns, known to ± its error."""

    host: str
    hostname: str
    kernel: str
    cores: int
    memory_bytes: int | None
    shm_bytes_free: int | None
    boot: str
    uid: int
    user: str
    home: str
    login_shell: str
    helper_python: str
    helper_python_version: str
    kill_user_processes: bool
    remove_ipc: bool
    ssh_address: str | None
    addresses: tuple[Interface, ...]
    ephemeral_range: tuple[int, int]
    gpus: tuple[Gpu, ...]
    nvidia_error: str | None
    pci_nvidia: int
    pci_amd: int
    visible_devices: str | None  # CUDA_VISIBLE_DEVICES (or HIP's, ROCR's) where the host or its inventory sets it
    env_digest: str
    environment: Mapping[str, str]  # what torchrun, NCCL and gloo heed, as the setup lines and clusterddp_env leave it
    settings: Mapping[str, str]  # what NCCL's files set, and proxies
    places: Mapping[str, str]  # variables that name folders of temporary files and caches
    packages: Mapping[str, str] | None  # versions; None: not asked, or no interpreter
    python: str | None
    python_version: str | None
    python_error: str | None
    torch: TorchFacts | None  # None where there is no interpreter
    torch_folder: str | None  # where its files lie
    time_ns: int
    clock_offset_ns: int = 0
    clock_error_ns: int = 0

    @classmethod
    def from_json(cls, host: str, data: Any, *, clock_offset_ns: int = 0, clock_error_ns: int = 0) -> Facts:
        """Facts from the result of a host's ``facts`` operation.

        Raises:
            HelperError: a field is missing or no value of its kind.
        """
        fields = facts_of(host, data)
        pci = fields.part("pci_gpus")
        first, last = fields.pair("ephemeral_range")
        torch = fields.part("torch") if fields.given("torch") else None
        return cls(
            host=host,
            hostname=fields.text("hostname"),
            kernel=fields.text("kernel"),
            cores=fields.number("cores"),
            memory_bytes=fields.maybe_number("memory_bytes"),
            shm_bytes_free=fields.maybe_number("shm_bytes_free"),
            boot=fields.text("boot"),
            uid=fields.number("uid"),
            user=fields.text("user"),
            home=fields.text("home"),
            login_shell=fields.text("login_shell"),
            helper_python=fields.text("helper_python"),
            helper_python_version=fields.text("helper_python_version"),
            kill_user_processes=fields.flag("kill_user_processes"),
            remove_ipc=fields.flag("remove_ipc"),
            ssh_address=fields.maybe_text("ssh_address"),
            addresses=fields.each("addresses", _interface),
            ephemeral_range=(first, last),
            gpus=fields.each("gpus", _gpu),
            nvidia_error=fields.maybe_text("nvidia_error"),
            pci_nvidia=pci.number("nvidia"),
            pci_amd=pci.number("amd"),
            visible_devices=fields.maybe_text("visible_devices"),
            env_digest=fields.text("env_digest"),
            environment=fields.mapping("environment", lambda one, name: one.text(name)),
            settings=fields.mapping("settings", lambda one, name: one.text(name)),
            places=fields.mapping("places", lambda one, name: one.text(name)),
            packages=fields.mapping("packages", lambda one, name: one.text(name)) if fields.given("packages") else None,
            python=fields.maybe_path("python"),
            python_version=fields.maybe_text("python_version"),
            python_error=fields.maybe_text("python_error"),
            torch=_torch(torch) if torch else None,
            torch_folder=fields.maybe_path("torch_folder"),
            time_ns=fields.number("time_ns"),
            clock_offset_ns=clock_offset_ns,
            clock_error_ns=clock_error_ns,
        )

    @property
    def devices(self) -> int:
        """How many GPUs torch sees."""
        return self.torch.device_count if self.torch else 0


def facts_request(entry: HostEntry, *, fresh: bool = False) -> dict[str, Any]:
    """The arguments of the ``facts`` operation for one host."""
    return {
        "setup": list(entry.setup),
        "python": entry.python,
        "workdir": entry.workdir,
        "env": dict(entry.env),
        "fresh": fresh,
    }


def _interface(fields: Fields) -> Interface:
    family = fields.number("family")
    bits = 32 if family == 4 else 128
    address = fields.check(
        "address", lambda text: ipaddress.ip_address(text).version == family, "an address of its family"
    )
    return Interface(
        name=fields.check("interface", _INTERFACE.fullmatch, "an interface name"),
        address=address,
        family=family,
        prefix=fields.number("prefix", bits),
        speed_mbit=fields.maybe_number("speed_mbit"),
        up=fields.flag("up"),
        mtu=fields.number("mtu"),
    )


def _gpu(fields: Fields) -> Gpu:
    return Gpu(
        index=fields.number("index"),
        uuid=fields.check("uuid", _UUID.fullmatch, "a GPU UUID"),
        name=fields.text("name"),
        memory_mib=fields.maybe_number("memory_mib"),
        used_mib=fields.maybe_number("used_mib"),
        driver=fields.text("driver"),
        mig=fields.flag("mig"),
        processes=fields.numbers("processes"),
    )


def _torch(fields: Fields) -> TorchFacts:
    import_error = fields.maybe_text("import_error")
    if import_error is not None:
        return TorchFacts(import_error=import_error)
    return TorchFacts(
        version=fields.text("version"),
        cuda=fields.maybe_text("cuda"),
        hip=fields.maybe_text("hip"),
        nccl=fields.maybe_text("nccl"),
        nccl_loaded=fields.maybe_text("nccl_loaded"),
        nccl_library=fields.maybe_text("nccl_library"),
        gloo=fields.flag("gloo"),
        nccl_available=fields.flag("nccl_available"),
        device_count=fields.number("device_count", MOST),
        device_names=fields.texts("device_names"),
        device_error=fields.maybe_text("device_error"),
    )
