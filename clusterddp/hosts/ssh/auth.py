"""Logging in over a paramiko transport: which keys are offered, in which order, and what a refusal says.

Covers key files, the agent, keys with a passphrase, and a second factor. Imports paramiko; imported lazily.
"""

from __future__ import annotations

import base64
import contextlib
import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING

import paramiko

from clusterddp.errors import AuthenticationError, UsageError
from clusterddp.hosts.ssh.known_hosts import KnownHosts, PresentedKey, unknown_key
from clusterddp.hosts.ssh.target import let_key_in
from clusterddp.text.printable import one_line

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from clusterddp.hosts.ssh.target import Target

    Ask = Callable[[str], str]  # a prompt in, the answer out; nothing is echoed

_asking = threading.Lock()  # prompts come one at a time
MOST_PROMPT = 200  # characters of a server's question
MOST_PROMPTS = 8  # of its questions at once


class HostKeyPolicy(paramiko.MissingHostKeyPolicy):
    """The only judge of a host key: paramiko's own store stays empty, it knows neither patterns nor revocation.

    Args:
        target: Whose key it is.
        known: The known hosts.
    """

    def __init__(self, target: Target, known: KnownHosts) -> None:
        self._target = target
        self._known = known

    def missing_host_key(self, client: paramiko.SSHClient, hostname: str, key: paramiko.PKey) -> None:
        """Return when the key is vouched for.

        Raises:
            HostKeyError: It is unknown, changed or revoked.
        """
        del client, hostname
        target = self._target
        shown = PresentedKey(host=target.name, names=target.key_names, type=key.get_name(), blob=key.get_base64())
        if self._known.check(shown, target.host_key_files):
            return
        if not target.accept_new:
            raise unknown_key(shown, target.known_hosts[0])
        self._known.append(shown, target.known_hosts[0], target.host_key_files)


@dataclass(frozen=True, kw_only=True, slots=True)
class Login:
    """Authentication of one connection, in the shape of a paramiko auth strategy.

    Args:
        target: Where to log in.
        ask: Prompts the user; without it nothing is asked.
    """

    target: Target
    ask: Ask | None

    def authenticate(self, transport: paramiko.Transport) -> list[str]:
        """Log in.

        Raises:
            AuthenticationError: No key of ours was accepted.
        """
        offered: list[str] = []
        with contextlib.ExitStack() as agents:
            for name, key in self._keys(agents, offered):
                try:
                    further = transport.auth_publickey(self.target.user, key)
                except paramiko.BadAuthenticationType as error:
                    return self._other_ways(transport, error.allowed_types, offered)
                except paramiko.AuthenticationException:
                    offered.append(name)
                    if not transport.is_active():
                        raise self._refused(offered, "too many keys were offered") from None
                    continue
                return self._other_ways(transport, further, offered) if further else []
        return self._other_ways(transport, ["keyboard-interactive", "password"], offered)

    def _keys(self, agents: contextlib.ExitStack, offered: list[str]) -> Iterator[tuple[str, paramiko.PKey]]:
        """Keys named by the user first (the agent signs for those it holds), then the agent's, then the defaults."""
        held = {key.asbytes(): key for key in self._agent_keys(agents, offered)}
        target = self.target
        for path in target.key_files[: target.given_keys]:
            yield from self._from_file(path, held, offered)
        if not target.only_given_keys:
            for key in list(held.values()):
                yield f"agent key {key.comment or key.get_name()}", key
        for path in target.key_files[target.given_keys :]:
            yield from self._from_file(path, held, offered)

    def _agent_keys(self, agents: contextlib.ExitStack, offered: list[str]) -> Sequence[paramiko.AgentKey]:
        if not self.target.agent:
            return ()
        try:
            agent = paramiko.Agent()
        except (paramiko.SSHException, OSError) as error:  # as without one, but said where no other key does
            offered.append(f"the agent ({error})")
            return ()
        agents.callback(agent.close)
        return agent.get_keys()

    def _from_file(
        self, path: Path, held: dict[bytes, paramiko.AgentKey], offered: list[str]
    ) -> Iterator[tuple[str, paramiko.PKey]]:
        public = _public_blob(path)
        if public in held:
            yield f"{path} (agent)", held.pop(public)
            return
        try:
            key = self._load(path)
        except OSError as error:
            offered.append(f"{path} ({error.strerror})")
            return
        if key is None:
            offered.append(f"{path} (has a passphrase: ssh-add {path})")
            return
        if key.asbytes() in held:
            del held[key.asbytes()]
        yield str(path), key

    def _load(self, path: Path) -> paramiko.PKey | None:
        """The key, or None when it has a passphrase nobody gave."""
        try:
            return paramiko.PKey.from_path(path)
        except (TypeError, paramiko.PasswordRequiredException):
            pass  # it has a passphrase: asked for below
        except (ValueError, paramiko.SSHException, paramiko.pkey.UnknownKeyType) as error:
            raise UsageError(
                f"{self.target.name}: key file {path} holds no private key we can read",
                remedy="name the private key, not the .pub file",
            ) from error
        if self.ask is None:
            return None
        with _asking:
            passphrase = self.ask(f"Passphrase of {path}: ")
        try:
            return paramiko.PKey.from_path(path, passphrase.encode())  # type: ignore[arg-type]
        except (TypeError, ValueError, paramiko.SSHException) as error:
            raise AuthenticationError(self.target.name, f"wrong passphrase for {path}") from error

    def _other_ways(self, transport: paramiko.Transport, allowed: Sequence[str], offered: list[str]) -> list[str]:
        """A second factor or a password, when there is somebody to ask."""
        ask, user = self.ask, self.target.user
        if ask is None:
            raise self._refused(offered, f"it also asks for {', '.join(allowed)}" if "password" not in allowed else "")
        try:
            with _asking:
                if "keyboard-interactive" in allowed:
                    whose = f"({user}@{self.target.called}) "  # the server words the rest
                    return transport.auth_interactive(
                        user,
                        lambda _title, _text, prompts: [
                            ask(whose + one_line(prompt)[:MOST_PROMPT]) for prompt, _echo in prompts[:MOST_PROMPTS]
                        ],
                    )
                return transport.auth_password(user, ask(f"Password of {user} on {self.target.place}: "))
        except paramiko.SSHException as error:
            raise self._refused(offered, "") from error

    def _refused(self, offered: Sequence[str], more: str) -> AuthenticationError:
        target = self.target
        what = f"refused {', '.join(offered)}" if offered else "got no key from us: there is none to offer"
        return AuthenticationError(
            target.name,
            f"{target.user}@{target.place} {what}{f' ({more})' if more else ''}",
            remedy=let_key_in(target, keys=bool(offered)),
        )


def _public_blob(path: Path) -> bytes:
    """The public half lying beside a private key, or ``b""``."""
    try:
        return base64.b64decode((path.parent / f"{path.name}.pub").read_text().split()[1])
    except (OSError, ValueError, IndexError):  # only to find the same key in the agent
        return b""
