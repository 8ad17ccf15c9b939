"""Kept connections: OpenSSH masters that `up --keep` makes, and that later commands use instead of a login.

Each is named by the digest of the ``Target`` that it was made for, so that it serves no other: its control socket is
``DIGEST-SECONDS-ACCOUNT-TOKEN``, in a folder of this user's alone. By its account it is found to be ended, whatever has
changed since. The token keeps an old master, which removes its socket when it ends, from removing that of the next.
"""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import re
import secrets
import signal
import stat
import subprocess
import tempfile
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING

from clusterddp.errors import HostError, UnreachableError, UsageError
from clusterddp.hosts.ssh import mux
from clusterddp.hosts.ssh.askpass import Prompts, can_ask
from clusterddp.hosts.ssh.config import ssh_environment
from clusterddp.hosts.ssh.mux import MuxError
from clusterddp.hosts.ssh.openssh_pipe import master_arguments, refusal_error, unreachable_error
from clusterddp.hosts.ssh.pipes import end

if TYPE_CHECKING:
    from collections.abc import Iterator

    from clusterddp.hosts.ssh.pipes import BytePipe
    from clusterddp.hosts.ssh.private_keys import Ask
    from clusterddp.hosts.ssh.target import Target

_log = logging.getLogger("clusterddp")
_LONGEST_BASE = 31  # letters: a socket's path has to fit into 104 bytes, with 17 that ssh adds while it makes it
_SOCKET = re.compile(r"([a-z2-7]{24})-\d+-[a-z2-7]{8}-[0-9a-f]{4}")  # with a suffix it is one that ssh makes
_MAX_STDERR = 64 * 1024  # bytes of ssh's messages that are read


class KeptConnections:
    """Finds, makes and ends this user's OpenSSH master connections. Thread-safe.

    ``seconds``: make those that are missing, each to be kept for so long after its last use; None: only use them.
    """

    def __init__(self, program: str | None, seconds: int | None, ask: Ask | None) -> None:
        self._program = program or "ssh"
        self._seconds = seconds
        self._ask = ask if seconds is not None and program and can_ask(program) else None
        self._passphrases: dict[str, str] = {}
        self._lock = threading.Lock()
        self._folder: Path | None = None  # by its descriptor, once it was looked for
        self._handle: int | None = None
        self._sockets: dict[str, str] | None = None
        self._failures: dict[str, tuple[float, str]] = {}  # digest → when and why its login failed
        self.outcomes: dict[str, str] = {}  # host → why its connection is not kept, empty if it is
        if seconds is not None and program is None:
            raise UsageError("there is no ssh program here, which keeps connections", remedy="install OpenSSH's client")
        if seconds is not None:
            _make_folder()

    def pipe(self, target: Target, command: str) -> BytePipe | None:
        """Start ``command`` over the target's kept connection; None if a login is needed.

        Raises UnreachableError if one is to be made, and nothing answers there.
        """
        if self._seconds is None and not self.found:
            return None
        try:
            if self._seconds is not None:
                self._ensure(target, time.monotonic())
                self.outcomes[target.name] = ""
            socket = self._socket(target.digest)
            if socket is None:
                return None
            pipe = mux.MuxPipe(socket, command)
        except MuxError as error:
            if self._seconds is not None:
                self.outcomes[target.name] = str(error)
            _log.debug("%s: its kept connection is not used: %s", target.name, error)
            return None
        _log.debug("%s: over its kept connection", target.name)
        return pipe

    def stop(self, target: Target) -> str | None:
        """End all kept connections to the target's account: they take nothing more, and go when nothing uses them.

        One that hangs is killed. Returns what has gone wrong, or an empty text; None if there is none.
        """
        with self._lock:
            digests = [key for key, name in (self._sockets or {}).items() if name.split("-")[2] == target.account]
        results = [_end(found) for digest in digests if (found := self._socket(digest))]
        return max(results, default=None)

    @property
    def found(self) -> bool:
        """Whether this user has any."""
        with self._lock:  # all threads ask at once, and the first lists the folder
            if self._sockets is None:
                self._list()
            return bool(self._sockets)

    def close(self) -> None:
        """Forget the folder; the kept connections stay."""
        with self._lock:
            if self._handle is not None:
                os.close(self._handle)
            self._handle, self._folder, self._sockets = None, None, {}

    def _socket(self, digest: str) -> Path | None:
        """The control socket of that name, if it is a socket of ours."""
        with self._lock:
            name = self._sockets.get(digest) if self._sockets else None
            if name is None or self._folder is None or self._handle is None:
                return None
            try:
                info = os.stat(name, dir_fd=self._handle, follow_symlinks=False)
            except OSError:
                return None
            ours = stat.S_ISSOCK(info.st_mode) and info.st_uid == os.geteuid()
            return self._folder / name if ours else None

    def _list(self) -> None:
        """List the folder anew; the caller holds the lock."""
        if self._handle is None:
            self._open()
        if self._handle is not None:
            names = os.listdir(self._handle)  # noqa: PTH208 - a descriptor is no path
            self._sockets = {found[1]: name for name in names if (found := _SOCKET.fullmatch(name))}

    def _open(self) -> None:
        """Open the folder."""
        self._sockets = {}
        folder = _folder()
        try:
            self._handle = _open_private(folder)
        except OSError as error:
            if not isinstance(error, FileNotFoundError):
                _log.debug("%s: no connection kept there is used: %s", folder, error)
            return
        self._folder = _by_descriptor(self._handle, folder)

    def _ensure(self, target: Target, asked_at: float) -> None:
        """See that the target has a kept connection; raises MuxError, or UnreachableError."""
        digest = target.digest
        with _locked(_folder(), digest):
            failed_at, why = self._failures.get(digest, (0.0, ""))
            if failed_at > asked_at:  # a jump host is not tried once per host
                raise MuxError(why)
            with self._lock:
                self._list()
            socket = self._socket(digest)
            if socket and socket.name.split("-")[1] == str(self._seconds) and mux.is_live(socket):
                return
            if socket:
                _end(socket)
            try:
                if target.via is not None:
                    self._ensure_jump(target.via, asked_at)
                self._log_in(target, f"{digest}-{self._seconds}-{target.account}-{secrets.token_hex(2)}")
            except (MuxError, HostError) as error:
                self._failures[digest] = time.monotonic(), str(error)
                raise
            with self._lock:
                self._list()

    def _ensure_jump(self, via: Target, asked_at: float) -> None:
        try:
            self._ensure(via, asked_at)
        except (MuxError, UnreachableError) as error:  # a login of its own says more
            raise MuxError(f"jump host {error}") from error

    def _log_in(self, target: Target, name: str) -> None:
        """Start a master, which goes on by itself once it is logged in.

        Raises MuxError if it was not to be; UnreachableError if nothing answers; AuthenticationError if the user was
        asked, and must not be once more.
        """
        via = self._socket(target.via.digest) if target.via else None
        jump_socket = str(_folder() / via.name) if via else ""
        arguments = master_arguments(
            target, str(_folder() / name), self._seconds or 0, jump_socket, asks=self._ask is not None
        )
        with contextlib.ExitStack() as opened:
            errors = opened.enter_context(tempfile.TemporaryFile())  # a pipe would be held by what the master starts
            prompts = opened.enter_context(Prompts(self._ask, self._passphrases)) if self._ask else None
            process = subprocess.Popen(
                [self._program, *arguments], stdin=subprocess.DEVNULL, stdout=errors, stderr=errors,
                start_new_session=True, env={**ssh_environment(), **(prompts.environment if prompts else {})},
            )  # fmt: skip
            timeout = 2 * target.connect_timeout + 5
            try:
                late = not (prompts.wait(process, timeout) if prompts else _ends(process, timeout))
            finally:
                end(process)
            errors.seek(0)
            said = errors.read(_MAX_STDERR).decode(errors="replace")
        if process.returncode == 0:
            return
        if prompts and prompts.asked:
            raise refusal_error(said, target)
        if not (target.via or target.proxy) and (error := unreachable_error(said, target, late=late)):
            raise error
        lines = [line.strip() for line in said.splitlines() if line.strip()]
        raise MuxError("no login in time" if late else lines[-1] if lines else "ssh said nothing")


def _end(socket: Path) -> str:
    """End the master of a control socket; one that hangs is killed. Returns what has gone wrong, or an empty text."""
    try:
        mux.stop_listening(socket)
    except MuxError as error:
        with contextlib.suppress(FileNotFoundError):
            socket.unlink()
        _kill_master(_folder() / socket.name)
        return str(error)
    return ""


def _kill_master(socket: Path) -> None:
    """Kill the master that was started for this control socket, where /proc tells which it is."""
    started, titled = b"\0-N\0-S\0%b\0" % os.fsencode(socket), b"ssh: %b [" % os.fsencode(socket)
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # it has ended meanwhile, or is another user's
            line = (process / "cmdline").read_bytes()
            if process.stat().st_uid == os.geteuid() and (started in line or line.startswith(titled)):
                os.kill(int(process.name), signal.SIGKILL)


def _ends(process: subprocess.Popen[bytes], timeout: float) -> bool:
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(timeout)
        return True
    return False


def _folder() -> Path:
    """Where this user's control sockets are: a short path that is local to this machine."""
    base = os.environ.get("XDG_RUNTIME_DIR", "")
    if os.path.isabs(base) and len(os.fsencode(base)) <= _LONGEST_BASE and os.path.isdir(base):  # noqa: PTH112, PTH117
        return Path(base) / "clusterddp"
    return Path("/tmp") / f"clusterddp-{os.geteuid()}"  # noqa: S108 - its owner and mode are checked


def _open_private(folder: Path) -> int:
    """Open a folder of this user's alone, which nobody else can replace; return its descriptor. Raises OSError."""
    above = folder.parent.stat()
    replaceable = above.st_mode & 0o022 and not above.st_mode & stat.S_ISVTX
    if above.st_uid not in (0, os.geteuid()) or replaceable:
        raise PermissionError(f"{folder.parent} can be written by another user")
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    info = os.fstat(handle)
    if info.st_uid != os.geteuid() or info.st_mode & 0o077:
        os.close(handle)
        raise PermissionError(f"{folder} is not yours alone")
    return handle


def _make_folder() -> None:
    """Make the folder if it is missing; raises UsageError if it is not this user's alone."""
    folder = _folder()
    try:
        with contextlib.suppress(FileExistsError):
            folder.mkdir(mode=0o700)
        os.close(_open_private(folder))
    except OSError as error:
        raise UsageError(
            f"no connection can be kept: {error}",
            remedy="set XDG_RUNTIME_DIR to a folder of yours alone, with a short name",
        ) from error


def _by_descriptor(handle: int, folder: Path) -> Path:
    """The way to an open folder that no other can take the place of, where the system has one."""
    way = Path(f"/proc/self/fd/{handle}")
    return way if way.is_dir() else folder


@contextlib.contextmanager
def _locked(folder: Path, digest: str) -> Iterator[None]:
    """Keep all others, threads and processes, from making that connection; nothing of the lock stays."""
    path = folder / f"{digest}.lock"
    while True:
        handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        fcntl.flock(handle, fcntl.LOCK_EX)
        if _is_still(path, handle):
            break
        os.close(handle)  # whoever had the lock has removed it
    try:
        yield
    finally:
        path.unlink(missing_ok=True)
        os.close(handle)


def _is_still(path: Path, handle: int) -> bool:
    with contextlib.suppress(FileNotFoundError):
        return os.path.samestat(path.stat(), os.fstat(handle))
    return False
