"""The private keys of one command: a passphrase is asked for once per key, whatever the number of hosts."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    import paramiko

    Ask = Callable[[str], str]  # a prompt in, the answer out; nothing is echoed

MAX_TRIES = 3  # of a passphrase, as ssh has them
PROMPT_LOCK = threading.Lock()  # prompts of a process come one at a time


class LockedKeyError(Exception):
    """A key file has a passphrase that was not given; the text says why, for a message to the user."""


class PrivateKeys:
    """Private keys by file. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._unlocked: dict[Path, paramiko.PKey] = {}
        self._given_up: dict[Path, str] = {}

    def load(self, path: Path, ask: Ask | None) -> paramiko.PKey:
        """The decrypted key in a file; ``ask`` prompts the user for its passphrase, None if there is no user to ask.

        Raises ``OSError`` if the file cannot be read, ``LockedKeyError`` if its passphrase was not given,
        ``UnreadableKeyError`` if it contains no private key.
        """
        if path in self._unlocked:
            return self._unlocked[path]
        key = _read(path)
        if key is not None:
            return key
        with self._lock:
            if path not in self._unlocked:
                self._unlocked[path] = self._unlock(path, ask)
            return self._unlocked[path]

    def _unlock(self, path: Path, ask: Ask | None) -> paramiko.PKey:
        if path in self._given_up:
            raise LockedKeyError(self._given_up[path])
        if ask is None:
            raise LockedKeyError(f"{path} has a passphrase, and there is no terminal to ask for it at")
        prompt = f"Passphrase of {path}: "
        for number in range(2, MAX_TRIES + 2):
            with PROMPT_LOCK:
                passphrase = ask(prompt)
            if not passphrase:
                self._given_up[path] = f"no passphrase was given for {path}"
                break
            key = _read(path, passphrase)
            if key is not None:
                return key
            prompt = f"Wrong passphrase. Passphrase of {path} (attempt {number} of {MAX_TRIES}): "
        else:
            self._given_up[path] = f"the passphrase given for {path} was wrong, {MAX_TRIES} times"
        raise LockedKeyError(self._given_up[path])


@dataclass(frozen=True, slots=True)
class Credentials:
    """What a login may use besides the agent: prompts (None if there is no user), and the command's private keys."""

    ask: Ask | None = None
    keys: PrivateKeys = field(default_factory=PrivateKeys)


def _read(path: Path, passphrase: str = "") -> paramiko.PKey | None:
    from clusterddp.hosts.ssh.key_files import read  # noqa: PLC0415 - paramiko is expensive to import

    return read(path, passphrase)
