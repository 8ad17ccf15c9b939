"""What can go wrong with a lab host's network and connections, as methods of LabHost."""

from __future__ import annotations

import contextlib
import os
import signal
from pathlib import Path
from typing import TYPE_CHECKING, Literal, Protocol

from tests.lab import network
from tests.lab.system import ProcessId, command

if TYPE_CHECKING:
    from tests.lab.network import Nic

Direction = Literal["in", "out", "both"]
CHAINS: dict[Direction, tuple[str, ...]] = {"in": ("INPUT",), "out": ("OUTPUT",), "both": ("INPUT", "OUTPUT")}


class _Wired(Protocol):
    """What the faults need of a host."""

    @property
    def nics(self) -> tuple[Nic, ...]: ...
    @property
    def namespace(self) -> str: ...
    @property
    def lab_number(self) -> int: ...
    @property
    def init(self) -> ProcessId: ...


class Faults:
    """Faults of the network; `heal()` undoes all of them, and so does a boot."""

    def cut(self: _Wired, card: str | None = None) -> None:
        """Pull the cable of one card (`eth0`), or all cables."""
        for nic in self.nics:
            if card in {None, nic.name}:
                network.set_link(self.lab_number, nic, "down")

    def drop(
        self: _Wired,
        port: int | str | None = None,
        proto: str = "tcp",
        direction: Direction = "in",
        peer: str | None = None,
    ) -> None:
        """Let packets to a port vanish, as a firewall does.

        Args:
            port: Destination port, or a range `29400:29499`; None means all ports.
            proto: `tcp`, `udp` or `all`.
            direction: `in`: to this host's port. `out`: from this host to others' port.
            peer: Only packets from or to this address.
        """
        _rule(self, "DROP", port=port, proto=proto, direction=direction, peer=peer)

    def reject(
        self: _Wired,
        port: int | str | None = None,
        proto: str = "tcp",
        direction: Direction = "in",
        peer: str | None = None,
        answer: str = "tcp-reset",
    ) -> None:
        """Refuse packets to a port with an answer (`tcp-reset`, `icmp-port-unreachable`, `icmp-host-unreachable`)."""
        target = f"REJECT --reject-with {answer}"
        _rule(self, target, port=port, proto=proto, direction=direction, peer=peer)

    def lose(self: _Wired, share: float) -> None:
        """Lose a share (0 to 1) of all packets, at random, in both directions."""
        chance = ("-m", "statistic", "--mode", "random", "--probability", str(share))
        for chain in CHAINS["both"]:
            _append(self, chain, *chance, "-j", "DROP")

    def black_hole(self: _Wired, largest: int = 1000, peer: str | None = None) -> None:
        """Let packets of more than ``largest`` bytes vanish without a word, as a path with a smaller MTU does.

        Args:
            largest: In bytes, headers included.
            peer: Only on the way to and from this address; None means every way, the operator's too.
        """
        for chain in CHAINS["both"]:
            ends = [] if peer is None else ["-s" if chain == "INPUT" else "-d", peer]
            _append(self, chain, *ends, "-m", "length", "--length", f"{largest + 1}:65535", "-j", "DROP")

    def reset_after(self: _Wired, size: int, port: int = 22) -> None:
        """Reset each connection to a port once ``size`` bytes of it have gone, both ways together."""
        _append(self, "INPUT", "-p", "tcp", "--tcp-flags", "RST", "RST", "-j", "ACCEPT")  # so that both sides know
        met = ("-m", "connbytes", "--connbytes", f"{size}:", "--connbytes-dir", "both", "--connbytes-mode", "bytes")
        reset = ("-j", "REJECT", "--reject-with", "tcp-reset")
        _append(self, "INPUT", "-p", "tcp", "--dport", str(port), *met, *reset)

    def rate(self: _Wired, speed: str) -> None:
        """Slow every cable down in both directions (`100mbit`)."""
        shape = ("root", "tbf", "rate", speed, "burst", "64k", "latency", "100ms")
        for place, device in _ends(self):
            command("tc", "-n", place, "qdisc", "replace", "dev", device, *shape)

    def heal(self: _Wired) -> None:
        """Cables in, firewall empty, full speed."""
        for table in ("iptables", "ip6tables"):
            command("ip", "netns", "exec", self.namespace, table, "-w", "-F", check=table == "iptables")
        for place, device in _ends(self):
            command("tc", "-n", place, "qdisc", "del", "dev", device, "root", check=False)
        for nic in self.nics:
            network.set_link(self.lab_number, nic, "up")

    def pause(self: _Wired) -> None:
        """Freeze the processes of all SSH connections into this host: open, but silent."""
        for pid in connections(self.init):
            with contextlib.suppress(ProcessLookupError):  # it ended just now
                os.kill(pid, signal.SIGSTOP)

    def resume(self: _Wired) -> None:
        """Thaw what `pause` froze."""
        for pid in connections(self.init):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)


def _rule(
    host: _Wired, target: str, *, port: int | str | None, proto: str, direction: Direction, peer: str | None
) -> None:
    for chain in CHAINS[direction]:
        match = ["-p", proto]
        if port is not None:
            match += ["--dport", str(port)]
        if peer is not None:
            match += ["-s" if chain == "INPUT" else "-d", peer]
        _append(host, chain, *match, "-j", *target.split())


def _append(host: _Wired, chain: str, *words: str) -> None:
    command("ip", "netns", "exec", host.namespace, "iptables", "-w", "-A", chain, *words)


def _ends(host: _Wired) -> list[tuple[str, str]]:
    """Namespace and device of both ends of every cable."""
    switch = network.switch(host.lab_number)
    return [end for nic in host.nics for end in ((host.namespace, nic.name), (switch, nic.port))]


def connections(init: ProcessId) -> list[int]:
    """sshd's processes below the listening one: two for each connection."""
    found: list[int] = []
    todo = children(init.pid)
    while todo:
        pid = todo.pop()
        if _name(pid).startswith("sshd"):
            found.append(pid)
            todo += children(pid)
    return found


def children(pid: int) -> list[int]:
    """The pids of a process's children."""
    try:
        return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except OSError:
        return []


def _name(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/comm").read_text(errors="replace").strip()
    except OSError:
        return ""
