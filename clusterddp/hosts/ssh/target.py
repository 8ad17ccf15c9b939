"""One machine to log in to, with everything decided: the input of both transports."""

from __future__ import annotations

import base64
import getpass
import hashlib
import os
import re
import shlex
import socket
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from clusterddp.errors import InventoryError
from clusterddp.hosts.ssh.config import user_home
from clusterddp.inventory.ssh_arguments import escape_tokens, expand_tokens
from clusterddp.project.user_folders import is_there, user_path

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

DEFAULT_KEYS = ("id_ed25519", "id_ecdsa", "id_rsa", "id_ed25519_sk", "id_ecdsa_sk")
SYSTEM_HOST_KEYS = (Path("/etc/ssh/ssh_known_hosts"), Path("/etc/ssh/ssh_known_hosts2"))
# A name becomes part of argument lists and, by ProxyCommand's %h, of shell commands; ssh refuses these characters too.
_UNSAFE = re.compile(r"""^-|[\s\x00-\x1f\x7f'"`$\\;&<>|(){}]""")
_VARIABLE = re.compile(r"\$\{(\w+)\}")


@dataclass(frozen=True, kw_only=True, slots=True)
class Target:
    """One machine to log in to."""

    name: str  # its name in messages
    host: str  # the address to connect to
    alias: str  # the name that the user gave it, which the blocks of an ssh configuration refer to
    port: int
    user: str
    key_names: tuple[str, ...]  # its names in known_hosts, the exact one first
    key_files: tuple[Path, ...]  # keys to offer; a public one, if an agent holds its private key
    named_key_count: int  # how many of them, the first, were asked for by name and must exist
    only_named_keys: bool  # whether no other key may be offered
    agent: bool  # whether an ssh agent may be used
    known_hosts: tuple[Path, ...]  # the user's files; new keys go to the first
    system_hosts: tuple[Path, ...]  # the system's known_hosts files
    accept_new: bool  # whether an unknown host key is recorded rather than refused
    connect_timeout: float
    compress: bool = False
    via: Target | None = None  # the jump host before it
    proxy: str = ""  # a ProxyCommand with its tokens replaced, or ``""``
    live_master: bool = False  # whether the user has a live ControlMaster to it
    config_file: str = ""  # the user's ``-F``, or ``""``
    passed: tuple[str, ...] = ()  # the user's ssh arguments, for the ``ssh`` program
    # the first IdentityFile of the ssh configuration that does not exist; default names do not count
    absent_key: Path | None = None
    configured: str = ""  # a digest of all that the ssh configuration and the ssh arguments say of it

    @property
    def account(self) -> str:
        """A digest (40 bits) of the address, port, user and jump hosts, without keys and other settings."""
        return _name(5, self.alias, self.host, self.port, self.user, self.via and self.via.account)

    @property
    def digest(self) -> str:
        """A name (120 bits) of all that decides which machine it is, as whom and on what trust we log in there.

        What only one command says is left out: names in messages, time limits, whether a new host key is recorded.
        """
        own = replace(self, name="", accept_new=False, connect_timeout=0, absent_key=None, live_master=False, via=None)
        return _name(15, own, self.via and self.via.digest)

    @property
    def host_key_files(self) -> tuple[Path, ...]:
        """All known_hosts files that may contain its key."""
        return self.known_hosts + self.system_hosts

    @property
    def endpoint(self) -> str:
        """``host:port`` for messages."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def _name(size: int, *values: object) -> str:
    """Return a digest of ``values`` with ``size`` bytes, in base 32."""
    digest = hashlib.sha256(repr(values).encode(errors="surrogateescape")).digest()
    return base64.b32encode(digest[:size]).decode().lower()


def unlock_remedy(key: Path) -> str:
    """A remedy: the command that gives the user's agent a key protected by a passphrase."""
    return f"`ssh-add {shlex.quote(str(key))}` asks for it once, for all commands"


def login_remedy(target: Target, *, keys: bool) -> str:
    """A remedy for a refused login: set another user, or the command that installs our key on the host.

    A host does not say whether the user or the key is wrong. Without ``keys`` (there is none to offer), or where the
    key's file does not exist, the command that makes one comes first.
    """
    # An ssh configuration with an IdentityFile has ssh offer no default key: the new key must have that file's name.
    absent = None if keys else target.absent_key
    file = next((path for path in target.key_files if path == private_key(path)), None)
    user = f"if your user there is not {target.user}, set ansible_user"
    if target.key_files and file is None:
        public = target.key_files[0]
        return f"{user}; else see that your agent holds the private key of {public}, and that the host takes it"
    file = file or absent
    named = shlex.quote(str(file))
    identity = f" -i {named}" if file else ""
    port = f" -p {target.port}" if target.port != 22 else ""
    copy = f"ssh-copy-id{identity}{port} {target.user}@{target.host}"
    if is_there(file) if file else keys:  # ssh-keygen would overwrite it
        return f"{user}; else `{copy}` has it take the key"
    return f"{user}; `ssh-keygen -t ed25519{f' -f {named}' if file else ''}` makes a key, then `{copy}`"


def refuse_unsafe(name: str, what: str, host: str, where: str) -> None:
    """Refuse a host or user name that an argument list or a shell could misinterpret."""
    if _UNSAFE.search(name):
        raise InventoryError(
            f"{what} {name!r} of {host} is not a name ssh could be given safely",
            where=where,
            remedy="use letters, digits, '.', '-', '_' and ':', and begin with no '-'",
        )


def names_in_known_hosts(alias: str, host: str, port: int) -> tuple[str, ...]:
    """The names under which a host's key is looked up, in OpenSSH's order."""
    if alias:
        return (alias.lower(),)
    host = host.lower()
    return (host,) if port == 22 else (f"[{host}]:{port}", host)


def tokens(*, host: str, port: int, user: str, original: str) -> dict[str, str]:
    """The values of the tokens in ssh settings, by their letter."""
    return {"%": "%", "h": host, "n": original, "p": str(port), "r": user, "d": str(user_home())}


def named_key(text: str, values: Mapping[str, str]) -> Path:
    """The file of an IdentityFile, in which ``ssh -G`` leaves variables and tokens; ``values``: those of tokens."""
    user, here = getpass.getuser() if "%u" in text else "", socket.gethostname()
    local = {"u": user, "i": str(os.getuid()), "l": here, "L": here.partition(".")[0]}
    text = _VARIABLE.sub(lambda match: escape_tokens(os.environ.get(match[1], match[0])), text)
    return user_path(expand_tokens(text, {**local, **values}))


def split_paths(values: Iterable[str]) -> tuple[Path, ...]:
    """The paths of a setting that lists several in one value."""
    found = [match for value in values for match in re.findall(r'"([^"]*)"|(\S+)', value)]
    return tuple(user_path(quoted or plain) for quoted, plain in found if (quoted or plain) != "none")


def default_keys() -> tuple[Path, ...]:
    """The default keys that ssh would try."""
    return tuple(user_home() / ".ssh" / name for name in DEFAULT_KEYS)


def key_file(path: Path) -> Path | None:
    """The file of a key: the private one, or where only that exists the public one; None if there is neither."""
    return next((file for file in (path, Path(f"{path}.pub")) if is_there(file)), None)


def private_key(path: Path) -> Path:
    """The file of the private key that belongs to a key file."""
    return path.with_name(path.name.removesuffix(".pub"))


def absent_key(named: Iterable[Path]) -> Path | None:
    """The first key in an ssh configuration that does not exist, not counting default keys."""
    defaults = {user_home() / ".ssh" / name for name in (*DEFAULT_KEYS, "id_dsa", "id_xmss")}
    return next((path for path in named if path not in defaults and key_file(path) is None), None)


def special_key(files: Iterable[Path]) -> str:
    """Why one of these keys needs the ``ssh`` program (a certificate beside it, a security key), or ``""``."""
    for path in map(private_key, files):
        if is_there(Path(f"{path}-cert.pub")):
            return f"the certificate {path}-cert.pub"
        public = Path(f"{path}.pub")
        if path.name.endswith("_sk") or (os.access(public, os.R_OK) and public.read_bytes().startswith(b"sk-")):
            return f"the security key {path}"
    return ""
