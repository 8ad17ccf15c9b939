"""Make a ``Target`` from an inventory's host: inventory, then ssh arguments, then ssh configuration, then defaults."""

from __future__ import annotations

import getpass
import hashlib
import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from clusterddp.errors import InventoryError, UsageError
from clusterddp.hosts.ssh import target as targets
from clusterddp.hosts.ssh.config import user_home
from clusterddp.hosts.ssh.target import Target
from clusterddp.inventory.ssh_arguments import TOKENS, SshArgs, expand_tokens, only_ssh_expands, parse_ssh_args

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from clusterddp.hosts.ssh.config import Settings, SshConfig
    from clusterddp.hosts.ssh.known_hosts import KnownHosts
    from clusterddp.inventory import HostEntry

_HOP = re.compile(r"(?:ssh://)?(?:(?P<user>.+)@)?(?:\[(?P<v6>[^\]]+)\]|(?P<host>[^:@\[]+))(?::(?P<port>\d+))?/?")
_MAX_HOPS = 8
_STRICT = ("", "yes", "true", "ask")


@dataclass(frozen=True, kw_only=True, slots=True)
class Route:
    """How to reach one host; ``openssh``: by the ``ssh`` program; ``why``: the setting that needs it."""

    target: Target
    openssh: bool
    why: str = ""

    @property
    def description(self) -> str:
        """The route as text: ``fabric to alice@10.0.0.1:22 via alice@bastion:22``."""
        hops, hop = [], self.target.via
        while hop:
            hops.append(f" via {hop.user}@{hop.endpoint}")
            hop = hop.via
        proxy = " by its ProxyCommand" if self.target.proxy else ""
        why = f" (for {self.why})" if self.why else ""
        program = "the ssh program" if self.openssh else "fabric"
        return f"{program}{why} to {self.target.user}@{self.target.endpoint}{''.join(hops)}{proxy}"


@dataclass(frozen=True, kw_only=True, slots=True)
class _Origin:
    """The source of a target's settings: the inventory's host, or the host behind a jump host.

    ``known_hosts`` and ``accept_new``: what the ssh arguments of that host say of host keys, for its jump hosts too.
    What the ssh configuration says there is of the host alone, as for ``ssh``.
    """

    name: str
    where: str
    args: SshArgs
    identity: Path | None = None
    behind: Target | None = None
    known_hosts: tuple[Path, ...] = ()
    accept_new: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class Resolver:
    """Turns an inventory's hosts into routes.

    A host in ``known`` only by an authority needs the ``ssh`` program. ``notice`` is called with ``(host, text)`` if a
    setting is used differently than written.
    """

    config: SshConfig
    known: KnownHosts
    accept_new: bool
    connect_timeout: float
    notice: Callable[[str, str], None]

    def route(self, entry: HostEntry, *, masters: bool = True) -> Route:
        """Decide how ``entry`` is reached; raises UsageError.

        ``masters``: by a live ControlMaster of the user's own, where there is one.
        """
        args = parse_ssh_args(entry.ssh_args, host=entry.name, where=entry.where)
        for unused in args.unused:
            self.notice(entry.name, f"{unused} in the ssh arguments is never used")
        origin = _Origin(name=entry.name, where=entry.where, args=args, identity=entry.identity_file)
        target, why = self._resolve(origin, entry.address, entry.user or "", entry.port, masters=masters)
        openssh = self._chooses_openssh(entry, why)
        return Route(target=target, openssh=openssh, why=why or ("clusterddp_transport: openssh" if openssh else ""))

    def _chooses_openssh(self, entry: HostEntry, why: str) -> bool:
        if entry.transport == "openssh" or (entry.transport == "auto" and why):
            if self.config.program is None:
                raise UsageError(
                    f"{entry.name}: there is no ssh program here{f', needed for {why}' if why else ''}",
                    remedy="install the OpenSSH client",
                )
            if entry.transport == "auto":
                self.notice(entry.name, f"reached through the ssh program, for {why}")
            return True
        if why:
            raise UsageError(
                f"{entry.name}: clusterddp_transport fabric cannot honour {why}",
                remedy="use clusterddp_transport: auto",
            )
        return False

    def _resolve(
        self, origin: _Origin, address: str, user: str, port: int | None, *, masters: bool, depth: int = 0
    ) -> tuple[Target, str]:
        """Return the target, and why it needs the ``ssh`` program (or ``""``)."""
        targets.refuse_unsafe(address, "address", origin.name, origin.where)
        options = [*(["-p", str(port)] if port else []), *(["-l", user] if user else [])]
        found = self._settings(address, origin.args, options)
        found |= {"port": (str(port),)} if port else {}
        found |= {"user": (user,)} if user else {}
        target = self._target(origin, address, found)
        argv = [*options, *origin.args.passed, "--", address]
        if masters and self.config.master_is_live(found, origin.args.config_file, argv):
            return replace(target, live_master=True), "a live ControlMaster"
        why = self._openssh_reason(origin, target, found)
        jump, command = _jump_or_command(found, origin.args)
        if command:
            values = targets.tokens(host=target.host, port=target.port, user=target.user, original=address)
            return replace(target, proxy=expand_tokens(command, values)), why
        via, why_via = self._jump(jump, target, origin, masters=masters, depth=depth) if jump else (None, "")
        return replace(target, via=via), why or why_via

    def _settings(self, address: str, args: SshArgs, options: Sequence[str]) -> Settings:
        """The settings of the ssh arguments and, behind them, of the configuration.

        known_hosts files that only ssh can name are those that it names. It prints them without quotes: if some has a
        blank, they stay as they were given.
        """
        found = self.config.settings(address, args, options)
        given, named = (of.get("userknownhostsfile", ()) for of in (args.options, found))
        asked = self.config.program is not None and any(map(only_ssh_expands, given))
        is_clear = asked and len(targets.split_paths(given)) == len(targets.split_paths(named))
        keys = (*args.options.get("identityfile", ()), *found.get("identityfile", ()))  # ssh offers both
        return {**found, **args.options, "identityfile": keys, **({"userknownhostsfile": named} if is_clear else {})}

    def _target(self, origin: _Origin, address: str, found: Settings) -> Target:
        host = _first(found, "hostname", address).replace("%h", address)
        user = _first(found, "user") or getpass.getuser()
        port = _number(origin, "port", _first(found, "port", "22"))
        targets.refuse_unsafe(host, "address", origin.name, origin.where)
        targets.refuse_unsafe(user, "user", origin.name, origin.where)
        values = targets.tokens(host=host, port=port, user=user, original=address)
        values["k"] = _first(found, "hostkeyalias", address)
        named = _named_keys(found, values) if found.get("identityfile") else [*targets.default_keys()]
        keys, given = self._key_files(origin, named, values)
        names = targets.names_in_known_hosts(_first(found, "hostkeyalias"), host, port)
        system = targets.split_paths(found.get("globalknownhostsfile", ())) or targets.SYSTEM_HOST_KEYS
        own = self._known_hosts(origin, found, values)
        return Target(
            name=origin.name,
            host=host,
            alias=address,
            port=port,
            user=user,
            key_names=names,
            key_files=keys,
            named_key_count=given,
            only_named_keys=origin.identity is not None or _is_yes(found, "identitiesonly"),
            agent=found.get("identityagent", ("",))[0].lower() != "none",
            known_hosts=self._with_those_of_the_host(origin, own, system, names[:1]) if origin.known_hosts else own,
            system_hosts=system,
            accept_new=self._accepts_new_keys(origin, found) or origin.accept_new,
            connect_timeout=_number(origin, "ConnectTimeout", _first(found, "connecttimeout", "0"))
            or self.connect_timeout,
            compress=_is_yes(found, "compression"),
            config_file=origin.args.config_file,
            passed=origin.args.passed,
            absent_key=targets.absent_key(named),
            configured=hashlib.sha256(repr(sorted(found.items())).encode(errors="surrogateescape")).hexdigest(),
        )

    def _jump(
        self, spec: str, behind: Target, origin: _Origin, *, masters: bool, depth: int
    ) -> tuple[Target | None, str]:
        """Return the jump host just before ``behind``; its ``via`` leads to the jump hosts before it."""
        via: Target | None = None
        why, said = "", origin.args.options
        for number, text in enumerate(spec.split(",")):
            match = _HOP.fullmatch(text.strip())
            if match is None or depth + number >= _MAX_HOPS:
                raise InventoryError(
                    f"jump host {text!r} of {behind.name} " + ("leads in a circle" if match else "is not a host"),
                    where=origin.where,
                    remedy="write ProxyJump as user@host:port,user@host:port",
                )
            hop = _Origin(
                name=match["v6"] or match["host"],
                where=origin.where,
                args=SshArgs(options={}, config_file=origin.args.config_file, foreign=(), unused=(), passed=()),
                behind=behind,
                known_hosts=behind.known_hosts if "userknownhostsfile" in said else origin.known_hosts,
                accept_new=behind.accept_new if "stricthostkeychecking" in said else origin.accept_new,
            )
            port = int(match["port"]) if match["port"] else None
            deeper = depth + number + 1
            target, reason = self._resolve(hop, hop.name, match["user"] or "", port, masters=masters, depth=deeper)
            if number == 0 and (target.host, target.port, target.user) == (behind.host, behind.port, behind.user):
                return None, ""  # as ssh does: a 'Host *' with ProxyJump speaks of the jump host too
            via = replace(target, via=via, proxy="") if number else target
            why = why or reason
        return via, why

    def _key_files(
        self, origin: _Origin, named: Sequence[Path], values: Mapping[str, str]
    ) -> tuple[tuple[Path, ...], int]:
        """Return the key files to offer, and how many of them (the first) the user named."""
        given = _named_keys(origin.args.options, values)
        if origin.identity is not None:
            given.insert(0, origin.identity.expanduser())
        for path in given:
            _check_readable(path, origin)
        usable = [file for path in named if (file := targets.key_file(path))]
        if origin.behind:  # ssh would offer a jump host only its own; the host's key is a key the user named too
            usable += origin.behind.key_files[: origin.behind.named_key_count]
        return tuple(dict.fromkeys((*given, *([] if origin.identity else usable)))), len(given)

    def _known_hosts(self, origin: _Origin, found: Settings, values: Mapping[str, str]) -> tuple[Path, ...]:
        """The user's known_hosts files for a target."""
        texts = found.get("userknownhostsfile", ())
        for text in texts:
            _check_tokens(text, origin)
        files = targets.split_paths(expand_tokens(text, values) for text in texts)
        kept = tuple(path for path in files if str(path) != "/dev/null")
        if kept != files:
            self.notice(origin.name, "UserKnownHostsFile /dev/null is not used: host keys stay in ~/.ssh/known_hosts")
        folder = user_home() / ".ssh"
        return kept or (folder / "known_hosts", folder / "known_hosts2")

    def _with_those_of_the_host(
        self, origin: _Origin, own: tuple[Path, ...], system: tuple[Path, ...], names: Sequence[str]
    ) -> tuple[Path, ...]:
        """A target's known_hosts files; for a jump host, those of the host's ssh arguments before its own.

        Where its own know it, they alone count, as for ``ssh``: a key that all hosts share must not pass for its key.
        """
        files = (*own, *system)
        known = self.known.types(files, names) or self.known.is_known_only_by_authority(files, names)
        return own if known else tuple(dict.fromkeys((*origin.known_hosts, *own)))

    def _accepts_new_keys(self, origin: _Origin, found: Settings) -> bool:
        value = _first(found, "stricthostkeychecking").lower()
        if value not in (*_STRICT, "accept-new"):
            self.notice(
                origin.name, f"StrictHostKeyChecking {value} is used as accept-new: a changed key is still refused"
            )
        return self.accept_new or value not in _STRICT

    def _openssh_reason(self, origin: _Origin, target: Target, found: Settings) -> str:
        if origin.args.foreign:
            return f"{origin.args.foreign[0]} in the ssh arguments"
        if self.known.is_known_only_by_authority(target.host_key_files, target.key_names):
            return "a host key known only by its @cert-authority"
        return targets.special_key(target.key_files) or self.config.openssh_reason(found)


def _first(found: Settings, keyword: str, default: str = "") -> str:
    """The first value of a setting; the default where it is unset or ``none``."""
    value = (found.get(keyword) or ("",))[0]
    return default if value.lower() in ("", "none") else value


def _named_keys(found: Mapping[str, tuple[str, ...]], values: Mapping[str, str]) -> list[Path]:
    """The key files that IdentityFile names; ``none`` keeps ssh from the default ones."""
    return [targets.named_key(text, values) for text in found.get("identityfile", ()) if text.lower() != "none"]


def _is_yes(found: Settings, keyword: str) -> bool:
    return _first(found, keyword).lower() in ("yes", "true")


def _jump_or_command(found: Settings, args: SshArgs) -> tuple[str, str]:
    """Return ProxyJump and ProxyCommand, at most one of them set; the arguments go before the configuration."""
    for source in (args.options, found):
        for keyword in ("proxyjump", "proxycommand"):
            value = source.get(keyword, ("",))[0]
            if value:
                value = "" if value.lower() == "none" else value
                return (value, "") if keyword == "proxyjump" else ("", value)
    return "", ""


def _number(origin: _Origin, what: str, text: str) -> int:
    """A number up to 65535 from a setting; raises InventoryError."""
    if not text.isdigit() or int(text) > 65535:
        raise InventoryError(
            f"{what} {text!r} of {origin.name} is not a number in range", where=origin.where, remedy="correct it"
        )
    return int(text)


def _check_tokens(text: str, origin: _Origin) -> None:
    """Refuse known_hosts files that only ssh could name, where it does not; raises InventoryError.

    A file of another name would not contain the host's key, so that a changed one would pass for a new one.
    """
    if only_ssh_expands(text):
        raise InventoryError(
            f"UserKnownHostsFile {text} of {origin.name} has a token that is unknown here",
            where=origin.where,
            remedy=f"use {', '.join(f'%{letter}' for letter in TOKENS)}, or write the path in full",
        )


def _check_readable(path: Path, origin: _Origin) -> None:
    try:
        with path.open("rb"):
            return
    except OSError as error:
        raise InventoryError(
            f"key file {path} of {origin.name} cannot be read: {error.strerror}",
            where=origin.where,
            remedy="correct ansible_ssh_private_key_file (or -i)",
        ) from error
