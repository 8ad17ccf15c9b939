"""Log in over a paramiko transport: which keys are offered, in which order, and what a refusal means."""

from __future__ import annotations

import contextlib
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import paramiko

from clusterddp.errors import AuthenticationError, UsageError
from clusterddp.hosts.ssh.key_files import UnreadableKeyError, public_blob
from clusterddp.hosts.ssh.known_hosts import KnownHosts, PresentedKey, unknown_key_error
from clusterddp.hosts.ssh.pipes import DroppedError
from clusterddp.hosts.ssh.private_keys import PROMPT_LOCK, Credentials, LockedKeyError
from clusterddp.hosts.ssh.target import login_remedy, private_key, unlock_remedy
from clusterddp.project.user_folders import is_there
from clusterddp.text.printable import one_line

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from clusterddp.hosts.ssh.private_keys import Ask
    from clusterddp.hosts.ssh.target import Target

PROMPTED_SECONDS = 0.5  # seconds: loading a key that took longer has waited for its passphrase
AGENT_TIMEOUT = 30.0  # seconds for an agent to list its keys; some have the user unlock them first
ANSWER_TIMEOUT = 600.0  # seconds to type an answer, or to confirm on a phone; sshd allows 120 for the whole login
MAX_PROMPT_LENGTH = 200  # characters of a server's question
_ASKING = {"keyboard-interactive", "password"}  # methods that ask the user
MAX_PROMPTS = 8  # questions of a server at once


class HostKeyPolicy(paramiko.MissingHostKeyPolicy):
    """Decides about every host key; paramiko's own store stays empty, as it knows no patterns or revocation."""

    def __init__(self, target: Target, known: KnownHosts) -> None:
        self._target = target
        self._known = known

    def missing_host_key(self, client: paramiko.SSHClient, hostname: str, key: paramiko.PKey) -> None:
        """Return if the host key is trusted; it is recorded if new keys are accepted. Raises HostKeyError."""
        del client, hostname
        target = self._target
        presented = PresentedKey(host=target.name, names=target.key_names, type=key.get_name(), blob=key.get_base64())
        if self._known.check(presented, target.host_key_files):
            return
        if not target.accept_new:
            raise unknown_key_error(presented, target.known_hosts[0])
        self._known.append(presented, target.known_hosts[0], also_check=target.host_key_files)


@dataclass(slots=True)
class _FailedKeys:
    """The keys that did not work in one login, as messages name them."""

    refused: list[str] = field(default_factory=list)
    unusable: list[str] = field(default_factory=list)  # and why
    locked: list[Path] = field(default_factory=list)  # those of them that need a passphrase
    unreadable: bool = False  # whether a file of them contains no private key
    prompted: Path | None = None  # the key whose passphrase was waited for, so that the host may have hung up


class _Agent(paramiko.Agent):
    """The user's ssh-agent, with a time limit for listing its keys but none for signing, which may ask the user."""

    def _connect(self, conn: Any) -> None:  # paramiko's constructor calls it; without a limit a hung agent holds us
        conn.settimeout(AGENT_TIMEOUT)
        try:
            super()._connect(conn)  # type: ignore[misc]  # the stubs lack it
        except BaseException:
            conn.close()
            raise
        conn.settimeout(None)


class _AgentKey(paramiko.AgentKey):
    """A key of the agent; if the agent does not sign with it, ``failure`` says why, and the host refuses it.

    paramiko signs in the connection's own thread, which an error ends: no other key would have its turn.
    """

    def __init__(self, key: paramiko.AgentKey) -> None:
        super().__init__(key.agent, key.blob, key.comment)
        self.failure = ""

    def asbytes(self) -> bytes:
        """Return the agent's own bytes; paramiko returns only the plain key for an RSA certificate."""
        return self.blob

    def sign_ssh_data(self, data: Any, algorithm: str | None = None) -> paramiko.Message:
        """Return the agent's signature; an invalid one, which the host refuses, if the agent does not sign."""
        try:
            return super().sign_ssh_data(data, algorithm)
        except (paramiko.SSHException, OSError) as error:
            self.failure = str(error)
        wrong = paramiko.Message()  # well-formed: some servers hang up on any other
        wrong.add_string((algorithm or self.name).removesuffix("-cert-v01@openssh.com"))
        wrong.add_string(bytes(64))
        return wrong


@dataclass(frozen=True, kw_only=True, slots=True)
class Authentication:
    """The login of one connection, with the interface of a paramiko auth strategy."""

    target: Target
    credentials: Credentials = field(default_factory=Credentials)

    def authenticate(self, transport: paramiko.Transport) -> list[str]:
        """Log in; raises AuthenticationError or DroppedError."""
        failed = _FailedKeys()
        methods, told = [*_ASKING], ""
        if self._needs_no_key(transport):
            return []
        with contextlib.ExitStack() as agents:
            for name, key in self._offered_keys(agents, failed):
                try:
                    methods = transport.auth_publickey(self.target.user, key)
                except paramiko.BadAuthenticationType as error:
                    methods = error.allowed_types
                    told = told or f"takes no keys, only {', '.join(methods)}"
                    break
                except paramiko.SSHException as error:
                    self._note_refusal(transport, error, failed, name, key)
                    continue
                if not methods:
                    return []
                told = f"took {name}, and also asks for {', '.join(methods)}"
                if "publickey" not in methods:
                    break
        return self._ask_user(transport, methods, failed, told)

    def _needs_no_key(self, transport: paramiko.Transport) -> bool:
        """Log in without any key, where that is enough (as Tailscale's server has it)."""
        if "OpenSSH" in transport.remote_version:  # it never is, and to ask takes two messages' time
            return False
        try:
            return not transport.auth_none(self.target.user)
        except paramiko.AuthenticationException:
            return False

    def _note_refusal(
        self, transport: paramiko.Transport, error: Exception, failed: _FailedKeys, name: str, key: paramiko.PKey
    ) -> None:
        """Note that a key was not taken; raises the error if the connection has ended."""
        if failed.prompted and not transport.is_active():
            raise self._hangup_error(failed.prompted) from error
        if not isinstance(error, paramiko.AuthenticationException):
            raise error
        if isinstance(key, _AgentKey) and key.failure:
            failed.unusable.append(f"{name}: the agent does not sign ({key.failure})")
        else:
            failed.refused.append(name)
        if not transport.is_active():
            raise self._login_error(failed, "too many keys were offered") from None

    def _offered_keys(self, agents: contextlib.ExitStack, failed: _FailedKeys) -> Iterator[tuple[str, paramiko.PKey]]:
        """Yield the keys the user named (the agent signs for those it holds), then the agent's, then the defaults."""
        agent_keys = {key.asbytes(): key for key in self._agent_keys(agents, failed)}
        target = self.target
        for path in target.key_files[: target.named_key_count]:
            yield from self._load_key(path, agent_keys, failed)
        if agent_keys and not target.only_named_keys:
            own = {public_blob(path) for path in target.key_files}  # first, as in ssh: a host refuses the seventh key
            for key in sorted(agent_keys.values(), key=lambda key: key.blob not in own):
                yield f"agent key {key.comment or key.get_name()}", key
        for path in target.key_files[target.named_key_count :]:
            if target.only_named_keys or public_blob(path) not in agent_keys:  # else it was offered
                yield from self._load_key(path, agent_keys, failed)

    def _agent_keys(self, agents: contextlib.ExitStack, failed: _FailedKeys) -> Sequence[_AgentKey]:
        """The agent's keys; the agent is closed with ``agents``."""
        if not self.target.agent:
            return ()
        try:
            agent = _Agent()
        except (paramiko.SSHException, OSError) as error:  # continue without an agent; reported if no other key works
            failed.unusable.append(f"the agent did not answer ({error})")
            return ()
        agents.callback(agent.close)
        return [_AgentKey(key) for key in agent.get_keys()]

    def _load_key(
        self, path: Path, agent_keys: dict[bytes, _AgentKey], failed: _FailedKeys
    ) -> Iterator[tuple[str, paramiko.PKey]]:
        """Yield the key of a file, signed for by the agent if it holds that key; note why one cannot be used."""
        public = public_blob(path)
        if public in agent_keys:
            yield f"{path} (agent)", agent_keys.pop(public)
            return
        if public and not is_there(private_key(path)):
            failed.unusable.append(f"no agent here holds the private key of {path}")
            return
        began = time.monotonic()
        try:
            key = self.credentials.keys.load(path, self.credentials.ask)
        except OSError as error:
            failed.unusable.append(f"{path} cannot be read ({error.strerror})")
            return
        except LockedKeyError as error:
            failed.unusable.append(str(error))
            failed.locked.append(path)
            return
        except UnreadableKeyError as error:
            failed.unusable.append(f"key file {path} {error}")
            failed.unreadable = True
            return
        failed.prompted = path if time.monotonic() - began > PROMPTED_SECONDS else None
        if key.asbytes() in agent_keys:
            del agent_keys[key.asbytes()]
        yield str(path), key

    def _ask_user(
        self, transport: paramiko.Transport, allowed: Sequence[str], failed: _FailedKeys, told: str
    ) -> list[str]:
        """Log in with a second factor or a password, if there is a user to ask.

        ``told`` says what the host made of a key that it did not refuse.
        """
        ask, user = self.credentials.ask, self.target.user
        if ask is None or not _ASKING & {*allowed}:
            raise self._answer_error(told, allowed) if told else self._login_error(failed)
        transport.auth_timeout = ANSWER_TIMEOUT  # a host that hangs must not keep all others from asking
        try:
            with PROMPT_LOCK:
                if "keyboard-interactive" in allowed:
                    try:
                        return self._answer_questions(transport, ask)
                    except paramiko.BadAuthenticationType as error:  # where PAM is off, or may not ask
                        if "password" not in error.allowed_types:
                            raise
                return transport.auth_password(user, ask(f"Password of {user} on {self.target.endpoint}: "))
        except paramiko.SSHException as error:
            more = "" if transport.is_active() else "it hung up before it took an answer"
            raise (self._answer_error(told, allowed) if told else self._login_error(failed, more)) from error

    def _answer_questions(self, transport: paramiko.Transport, ask: Ask) -> list[str]:
        """Log in by the user's answers to the server's questions."""
        whose = f"({self.target.user}@{self.target.alias}) "  # the rest is the server's text
        return transport.auth_interactive(
            self.target.user,
            lambda _title, _text, prompts: [
                ask(whose + one_line(prompt)[:MAX_PROMPT_LENGTH]) for prompt, _echo in prompts[:MAX_PROMPTS]
            ],
        )

    def _hangup_error(self, key: Path) -> DroppedError:
        return DroppedError(
            self.target.name,
            f"{self.target.endpoint} hung up while the passphrase of {key} was waited for",
            remedy=unlock_remedy(key),
        )

    def _answer_error(self, told: str, allowed: Sequence[str]) -> AuthenticationError:
        """Build the error for a host that no key alone logs in to, and that got no answer it takes."""
        target = self.target
        typed = "; what was typed did not log in" if self.credentials.ask and _ASKING & {*allowed} else ""
        by = "have your agent hold all keys that it wants; or " if "publickey" in allowed else ""
        if _ASKING & {*allowed}:
            by = f"{'type it again' if typed else 'run this at a terminal, where you are asked'}; or "
        message = f"{target.user}@{target.endpoint} {told}{typed}"
        return AuthenticationError(target.name, message, remedy=f"{by}have the host let you in by a key alone")

    def _login_error(self, failed: _FailedKeys, more: str = "") -> AuthenticationError | UsageError:
        """Build the error for a failed login; the same for all hosts with one locked key, so that it is shown once."""
        target = self.target
        login = f"{target.user}@{target.endpoint}"
        reasons = list(failed.unusable)
        if failed.unreadable and not (failed.refused or failed.locked):
            remedy = "name the private key, not the .pub file"
            return UsageError(f"{target.name}: {'; '.join(reasons)}", remedy=remedy)
        if failed.refused or not failed.locked:
            refused = (
                f"refused {', '.join(failed.refused)}"
                if failed.refused
                else "got no key from us: there is none to offer"
            )
            reasons.insert(0, f"{login} {refused}{f' ({more})' if more else ''}")
        remedy = login_remedy(target, keys=bool(failed.refused or failed.unusable))
        if failed.locked:
            remedy = unlock_remedy(failed.locked[0])
        return AuthenticationError(target.name, "; ".join(reasons), remedy=remedy)
