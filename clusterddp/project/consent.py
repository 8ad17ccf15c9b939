"""Consent: which inventories this user has chosen, proved by a key that only this user has.

An inventory can run programs on this machine (``ansible_connection: local``, ProxyCommand) and send variables of this
environment to hosts. So a path found in a project's folder is trusted only with an HMAC by the key below.
"""

from __future__ import annotations

import contextlib
import functools
import grp
import hmac
import json
import os
import pwd
import secrets
import shlex
import stat
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

from clusterddp.errors import UsageError
from clusterddp.project.user_folders import make_private, user_folder

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

KEY = "consent.key"
_KEY_SIZE = 32  # bytes
_ROOT = 0
_REMEDY = "make it yours alone (0700), or set XDG_STATE_HOME to a folder of yours; `-i FILE` needs none"


@dataclass(frozen=True, kw_only=True, slots=True)
class Writers:
    """Who may write an inventory besides this user and root; by naming it the user has agreed to them."""

    owner: int  # the uid of the file's owner
    group: int | None = None  # the gid of the group that may write it; None if none may, or nobody else is in it
    everyone: bool = False  # whether all users of this machine may

    @classmethod
    def of(cls, info: os.stat_result) -> Writers:
        """Return who may write a file or a folder."""
        by_group = info.st_mode & stat.S_IWGRP and not _is_private_group(info.st_gid, info.st_uid)
        return cls(
            owner=info.st_uid, group=info.st_gid if by_group else None, everyone=bool(info.st_mode & stat.S_IWOTH)
        )

    def may_own(self, uid: int) -> bool:
        """Whether a file that this uid owns may be read: its owner could have written the inventory itself."""
        if self.everyone or uid in {os.geteuid(), _ROOT, self.owner}:
            return True
        return self.group is not None and _is_member(uid, self.group)

    def objection(self, info: os.stat_result) -> str:
        """Return why a file may not be read: who else could have written it; empty if nobody else."""
        if not self.may_own(info.st_uid):
            return f"belongs to {user_name(info.st_uid)}"
        if self.everyone:
            return ""
        others = Writers.of(info)
        if others.everyone:
            return "can be written by everyone"
        if others.group not in {None, self.group}:
            return f"can be written by the group {group_name(info.st_gid)}"
        return ""

    @property
    def others(self) -> str:
        """Describe those writers who are neither this user nor root; empty if there are none."""
        if self.everyone:
            return "everyone on this machine"
        owner = "" if self.owner in {os.geteuid(), _ROOT} else user_name(self.owner)
        group = "" if self.group is None else f"the group {group_name(self.group)}"
        return " and ".join(filter(None, (owner, group)))


@dataclass(frozen=True, kw_only=True, slots=True)
class Consent:
    """What ``up FILE`` keeps besides the path and the limit."""

    writers: Writers
    root: str  # the project's folder
    inode: int  # of that folder, which is recognised by it after it was renamed
    proof: str = ""  # the HMAC over all of it; empty while it is made

    def values(self, project: str | None, inventory: str | None, limit: str | None) -> tuple[object, ...]:
        """Return the values that the proof covers; ``inventory`` is its path, as project.json holds it."""
        who = (self.writers.owner, self.writers.group, self.writers.everyone)
        return (project, inventory, limit, self.root, self.inode, *who)

    def to_json(self) -> dict[str, object]:
        """Return the consent as project.json holds it; ``read_consent`` is the inverse."""
        return {**asdict(self.writers), "root": self.root, "inode": self.inode, "proof": self.proof}


def read_consent(data: object) -> Consent | None:
    """Return the consent in project.json; None if there is no valid one."""
    if not isinstance(data, dict):
        return None
    owner, group, everyone, root, inode, digest = map(
        data.get, ("owner", "group", "everyone", "root", "inode", "proof")
    )
    if type(owner) is not int or type(inode) is not int or type(everyone) is not bool:
        return None
    if not (group is None or type(group) is int) or not isinstance(root, str) or not isinstance(digest, str):
        return None
    return Consent(writers=Writers(owner=owner, group=group, everyone=everyone), root=root, inode=inode, proof=digest)


def user_name(uid: int) -> str:
    """Describe a user for a message: ``alice (uid 1000)``."""
    try:
        return f"{pwd.getpwuid(uid).pw_name} (uid {uid})"
    except KeyError:
        return f"uid {uid}"


def group_name(gid: int) -> str:
    """Describe a group for a message: ``staff (gid 50)``."""
    try:
        return f"{grp.getgrgid(gid).gr_name} (gid {gid})"
    except KeyError:
        return f"gid {gid}"


@functools.lru_cache(maxsize=64)
def _is_private_group(gid: int, uid: int) -> bool:
    """Whether a group has the user's own name and no other member; then a umask of 002 is safe."""
    try:
        user, group = pwd.getpwuid(uid), grp.getgrgid(gid)
    except KeyError:
        return False
    return (user.pw_gid, user.pw_name) == (gid, group.gr_name) and {*group.gr_mem} <= {user.pw_name}


@functools.lru_cache(maxsize=64)
def _is_member(uid: int, gid: int) -> bool:
    try:
        user = pwd.getpwuid(uid)
    except KeyError:
        return False
    return gid in os.getgrouplist(user.pw_name, user.pw_gid)


def state_folder() -> Path:
    """Return this user's state folder: ``$XDG_STATE_HOME/clusterddp``, else below ``~/.local/state``.

    Raises UsageError if this user's home is unknown.
    """
    try:
        return user_folder("XDG_STATE_HOME", "~/.local/state")
    except OSError as error:
        remedy = "set HOME, or XDG_STATE_HOME to a folder of yours"
        raise UsageError(error.strerror or str(error), remedy=remedy) from error


def proof(key: bytes, purpose: str, *values: object) -> str:
    """Return the HMAC over JSON values; ``purpose`` keeps proofs of different things distinct."""
    return hmac.digest(key, json.dumps([f"clusterddp {purpose}", *values]).encode(), "sha256").hex()


def proves(claimed: object, key: bytes | None, purpose: str, *values: object) -> bool:
    """Whether ``claimed`` is the proof over these values."""
    if key is None or not isinstance(claimed, str) or not claimed.isascii():
        return False
    return hmac.compare_digest(claimed, proof(key, purpose, *values))


def load_key() -> bytes | None:
    """Return this user's key; None if there is none yet.

    Raises UsageError if it cannot be read, or others can read it.
    """
    folder = state_folder()
    with _reported_errors(folder, "read"), contextlib.ExitStack() as stack:
        try:
            handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            stack.callback(os.close, handle)
            _refuse_access_by_others(folder, os.fstat(handle))
            file = os.open(KEY, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=handle)
        except FileNotFoundError:
            return None
        stack.callback(os.close, file)
        info = os.fstat(file)
        _refuse_access_by_others(folder / KEY, info)
        key = os.read(file, _KEY_SIZE + 1) if stat.S_ISREG(info.st_mode) else b""
    if len(key) != _KEY_SIZE:
        raise UsageError(
            f"{folder / KEY}: is damaged", remedy="remove it; each project then wants its `clusterddp up FILE` again"
        )
    return key


def ensure_key() -> bytes:
    """Return this user's key, made if there is none; raises UsageError if it can be neither read nor written."""
    key = load_key()
    if key is not None:
        return key
    folder = state_folder()
    with _reported_errors(folder, "written"):
        make_private(folder)
        temporary = folder / f".{KEY}.{secrets.token_hex(8)}"
        handle = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(secrets.token_bytes(_KEY_SIZE))
                file.flush()
                os.fsync(file.fileno())
            with contextlib.suppress(FileExistsError):  # of two commands at once the first one's key stays
                os.link(temporary, folder / KEY)
        finally:
            temporary.unlink(missing_ok=True)
    key = load_key()
    if key is None:
        raise UsageError(f"{folder / KEY}: is removed as soon as it is written", remedy=_REMEDY)
    return key


def _refuse_access_by_others(path: Path, info: os.stat_result) -> None:
    if info.st_uid != os.geteuid():
        raise UsageError(f"{path}: belongs to {user_name(info.st_uid)}, not to you", remedy=_REMEDY)
    if info.st_mode & 0o077:
        mode = stat.S_IMODE(info.st_mode)
        raise UsageError(f"{path}: is open to other users ({mode:04o})", remedy=f"`chmod go= {shlex.quote(str(path))}`")


@contextlib.contextmanager
def _reported_errors(folder: Path, done: str) -> Iterator[None]:
    """Raise UsageError for an OSError in the block; ``done``: ``read`` or ``written``, for the message."""
    try:
        yield
    except OSError as error:
        raise UsageError(f"{folder}: your state folder cannot be {done} ({error.strerror})", remedy=_REMEDY) from error
