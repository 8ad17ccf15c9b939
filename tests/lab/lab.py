"""A lab: N hosts, the operator's key, and the inventory that names them.

with Lab(hosts=2) as lab:
    lab.inventory                      # path of an inventory.yaml
    lab.host("gpu01").power_off()
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, final

from tests.lab import network, registry, texts
from tests.lab.disk import FIRST_UID, User
from tests.lab.host import LabHost
from tests.lab.options import HostOptions, LabUnavailable, why_not
from tests.lab.system import command
from tests.lean import lean_python

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence
    from pathlib import Path
    from types import TracebackType

BASTION_POSITION = 250
MOST_HOSTS = 240


@final
class Lab:
    """N machines on one. Start it with `start()` or `with`; `stop()` removes every trace.

    Every host sees the operator's `/` beneath a layer of its own, but has its own /home, /var/tmp, /tmp, /run
    and /dev/shm. What the operator changes in `/` while a host runs may or may not be seen there.

    Args:
        hosts: How many hosts, named gpu00, gpu01, …
        options: Options of all hosts.
        host: Options of single hosts, by name; they replace `options`.
        shared_home: One folder is /home on all hosts, as with a network file system.
        two_networks: Hosts (True: all) with a second card eth1 on another network, 10.78.<lab>.0/24.
        bastion: A further host `bastion`; the operator reaches the others only through it.
        known: Fill known_hosts with the hosts' keys (else it is left empty).
        users: The accounts; the first is the operator's.
        home_files: Texts by path, which every account's home has from the beginning.
        variables: The inventory's variables of all hosts (default: an interpreter whose torch is torchrun alone).
        connect_timeout: The inventory's ConnectTimeout, seconds (default: none, so the product's 10 hold). For tests
            that contact hosts that are off, and do not test how long that takes.
        kept: The lab outlives this process (until `python -m tests.lab down`).

    Attributes:
        number: The lab's number: its network is 10.77.<number>.0/24.
        folder: Everything of this lab: keys, known_hosts, ssh_config, inventory.yaml, hosts/NAME/.
        hosts: The GPU hosts in order (no bastion).
        bastion: The bastion, if there is one.
    """

    def __init__(
        self,
        hosts: int = 4,
        *,
        options: HostOptions | None = None,
        host: Mapping[str, HostOptions] | None = None,
        shared_home: bool = False,
        two_networks: bool | Collection[str] = False,
        bastion: bool = False,
        known: bool = True,
        users: Sequence[str] = ("trainer",),
        home_files: Mapping[str, str] | None = None,
        variables: Mapping[str, object] | None = None,
        connect_timeout: int | None = None,
        kept: bool = False,
    ) -> None:
        if not 1 <= hosts <= MOST_HOSTS:
            raise ValueError(f"a lab has 1 to {MOST_HOSTS} hosts, not {hosts}")
        self._names = [f"gpu{index:02d}" for index in range(hosts)]
        self._options = options or HostOptions()
        self._host_options = host or {}
        self._two = self._names if two_networks is True else list(two_networks or ())
        self._with_bastion = bastion
        self._shared_home = shared_home
        self._known = known
        self._users = tuple(User(name=name, uid=FIRST_UID + index) for index, name in enumerate(users))
        self._home_files = dict(home_files or {})
        self._variables = variables or {"clusterddp_python": lean_python()}
        self._connect_timeout = connect_timeout
        self._kept = kept
        self.number = 0
        self.hosts: list[LabHost] = []
        self.bastion: LabHost | None = None

    def start(self) -> Lab:
        """Boot all hosts in parallel and write the operator's files.

        Raises:
            LabUnavailable: This machine cannot carry this lab.
        """
        reason = why_not()
        if reason:
            raise LabUnavailable(reason)
        for options in (self._options, *self._host_options.values()):
            options.shell_path()
        self.number, self.folder = registry.allocate(kept=self._kept)
        try:
            self._build()
        except BaseException:
            self.stop()
            raise
        return self

    def _build(self) -> None:
        network.build_switch(self.number)
        self.hosts = [self._make(name, position) for position, name in enumerate(self._names, 1)]
        self.bastion = self._make_bastion() if self._with_bastion else None
        key = self.folder / "id_ed25519"
        command("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "lab operator", "-f", str(key))
        public = key.with_suffix(".pub").read_text()
        names = {name: address for host in self.machines for name, address in self._lines(host)}
        home = self.folder / "home" if self._shared_home else None
        if home:
            home.mkdir()
            self._prepare(self.hosts[0], names, public, home)
        with ThreadPoolExecutor(len(self.machines)) as pool:
            rest = self.machines[1:] if home else self.machines
            list(pool.map(lambda host: self._prepare(host, names, public, home), rest))
            list(pool.map(LabHost.boot, self.machines))
        (self.folder / "known_hosts").write_text(texts.known_hosts(self.machines) if self._known else "")
        (self.folder / "ssh_config").write_text(texts.ssh_config(self.machines, self.folder, self.bastion))
        self.write_inventory()

    def _make(self, name: str, position: int) -> LabHost:
        bridge = network.INNER if self._with_bastion else network.FRONT
        nics = [network.nic(self.number, name, 0, bridge, position)]
        if name in self._two:
            nics.append(network.nic(self.number, name, 1, network.SECOND, position))
        return self._host(name, tuple(nics))

    def _make_bastion(self) -> LabHost:
        bridges = (network.FRONT, network.INNER)
        cards = (network.nic(self.number, "bastion", n, b, BASTION_POSITION) for n, b in enumerate(bridges))
        return self._host("bastion", tuple(cards))

    def _host(self, name: str, nics: tuple[network.Nic, ...]) -> LabHost:
        options = self._host_options.get(name, self._options)
        return LabHost(self.folder, name, lab=self.number, nics=nics, users=self._users, options=options)

    def _prepare(self, host: LabHost, names: Mapping[str, str], key: str, home: Path | None) -> None:
        inner = self._with_bastion and host is not self.bastion
        gate = network.namespace(self.number, "bastion") if inner else None
        shared = None if host is self.bastion else home
        host.prepare(names, {**self._home_files, ".ssh/authorized_keys": key}, shared_home=shared, gate=gate)

    @staticmethod
    def _lines(host: LabHost) -> list[tuple[str, str]]:
        """Names of a host's addresses: `gpu00`, and `gpu00-1` for its second card."""
        return [(nic.port, nic.address) for nic in host.nics]

    @property
    def machines(self) -> list[LabHost]:
        """All hosts, the bastion too."""
        return [*self.hosts, *([self.bastion] if self.bastion else [])]

    def host(self, name: str) -> LabHost:
        """A host by name."""
        return next(host for host in self.machines if host.name == name)

    def let_root_in(self) -> None:
        """Every host takes the operator's key for root too."""
        key = (self.folder / "id_ed25519.pub").read_text()
        for host in self.hosts:
            host.write("/root/.ssh/authorized_keys", key, user="root", mode=0o600)
            host.write("/root/.bashrc", "", user="root")  # the operator's own would begin every command there

    @property
    def inventory(self) -> Path:
        """The inventory of all hosts."""
        return self.folder / "inventory.yaml"

    def inventory_text(
        self,
        *,
        hosts: Sequence[str] | None = None,
        proxy: texts.Proxy = "jump",
        twice: Sequence[str] = (),
        more: Mapping[str, Mapping[str, object]] | None = None,
    ) -> str:
        """An inventory as YAML.

        Args:
            hosts: Names, in the order wanted (default: all but the bastion).
            proxy: How it says that the hosts lie behind the bastion: `jump` (ProxyJump), `command`
                (ProxyCommand, complete), `config` (`-F` with the lab's ssh_config), `none`.
            twice: Hosts that appear a second time, as `<name>b` with the same address: two nodes on one host.
            more: Further variables by host name; under `all` for all hosts. They win; None: as if it were not named.
                Workers are started plainly unless these or the lab's own say otherwise: most tests are not about that.
        """
        chosen = [self.host(name) for name in hosts] if hosts is not None else self.hosts
        of_all = {"clusterddp_fork_server": False, **self._variables, **(more or {}).get("all", {})}
        of_all = {name: value for name, value in of_all.items() if value is not None}
        more = {**(more or {}), "all": of_all}
        ssh_args = texts.ssh_arguments(self.folder, self.bastion, proxy, self._connect_timeout)
        return texts.inventory(chosen, self.folder, ssh_args=ssh_args, twice=twice, more=more)

    def write_inventory(
        self,
        path: Path | None = None,
        *,
        hosts: Sequence[str] | None = None,
        proxy: texts.Proxy = "jump",
        twice: Sequence[str] = (),
        more: Mapping[str, Mapping[str, object]] | None = None,
    ) -> Path:
        """Write `inventory_text` to a file (default: the lab's own) and return its path."""
        target = path or self.inventory
        target.write_text(self.inventory_text(hosts=hosts, proxy=proxy, twice=twice, more=more))
        return target

    def ssh(self, name: str, *words: str) -> list[str]:
        """The command line of the real ssh client to a host, by the lab's own configuration."""
        return ["ssh", "-F", str(self.folder / "ssh_config"), name, *words]

    def stop(self) -> None:
        """Power off and remove everything; a second call does nothing."""
        if self.number:
            registry.remove(self.number)
            self.number = 0

    def __enter__(self) -> Lab:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()
