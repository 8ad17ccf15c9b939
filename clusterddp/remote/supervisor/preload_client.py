"""A host's warm server as a run's start uses it: decide whether to start from it, do so, leave one for the next run.

There is one for a state folder, in ``<state>/warm/HOST/`` with its own copy of the code. A run is started from it only
if a plain start would give the same: the same code, interpreter, environment (except for names that nothing reads while
torch is imported), limits, rights, namespaces, cgroup. Otherwise the start is plain, and an event records why.
"""

import contextlib
import fcntl
import os
import re
import signal
import socket
import sys
from typing import Any, Dict, List, Mapping, NamedTuple, Optional, Sequence

from ..preload.server_environment import differing_variable, server_environment
from ..preload.server_folder import LOG as WARM_LOG
from ..preload.server_folder import (
    RECORD,
    SCRIPT,
    WISHES,
    LivePreloadServer,
    ServerRecord,
    Wishes,
    end,
    find,
    folder_of,
    why_refused,
)
from ..preload.start_request import StartRequest
from ..shared.processes.exit_codes import EXIT_CANNOT_START
from ..shared.run.plan import NodePlan
from ..shared.schema.record import to_fields
from ..spool.creation import write_hook
from ..spool.layout import Spool
from ..system import procfs
from ..system.bootstrap import private, private_folder, write_json
from ..system.descriptors import OpenedCode, link_or_copy
from ..worker.fork_client import ForkServerConnection, NotForkedError, connect, decoded, differences, send
from ..worker.worker_env import fork_server_environment, script_environment
from .fork_server_process import LOG

ANSWER_TIMEOUT = 10.0  # seconds for the warm server's answer
IGNORED_DIFFERENCES = ("working folder", "cgroup", "oom_score_adj", "sessionid")  # set anew, or compared otherwise
CGROUP_LIMITS = ("memory.max", "memory.high", "cpu.max", "pids.max", "cpuset.cpus.effective")
KEY_TYPES = ("user", "logon", "big_key", "encrypted")


def may_preload(plan: NodePlan) -> bool:
    """Whether the plan's run may be started from a warm server, and leave one for the next."""
    of_script = bool(plan.worker_argv) and not plan.settings.program
    return of_script and plan.host_settings.warm > 0 and not plan.manager and not plan.standby


class DiffersError(Exception):
    """The run cannot be started from the warm server; the message says why."""


class NotReadyError(DiffersError):
    """A suitable warm server exists, but is not ready yet."""


class PreloadedStart(NamedTuple):
    """A node that is about to be started; its spool exists already."""

    state: str
    spool: Spool
    plan: NodePlan
    environment: Mapping[str, str]  # the agent's

    @property
    def folder(self) -> str:
        """The warm server's folder."""
        return folder_of(self.state)

    @property
    def worker_env(self) -> Dict[str, str]:
        """The environment that all workers have in common, as they see it."""
        env = dict(self.environment, **self.spool.secrets())
        return script_environment(fork_server_environment(env, self.spool.folder, 0))

    def begin(self, handles: Sequence[int], listeners: Sequence[bool]) -> bool:
        """Start the supervisor from the warm server; False where there is none.

        ``handles`` are the supervisor's stdin and stdout, then the existing ones of ``listeners``: which of the store's
        and run control's listening sockets there are. Raises DiffersError if there is one, or should be, and the start
        has to be plain.
        """
        server = find(self.state)
        if not server:
            refused = why_refused(self.state)
            if refused:
                raise DiffersError("there is none, for %s" % refused)
            return False
        self.compare(server)
        if not server.ready:
            awaits = "it waits for the end of another run here" if server.waiting else "it is not ready yet"
            raise NotReadyError(awaits)
        request = StartRequest(
            program=[sys.executable, "-I", "-S", self.spool.code],
            spool=self.spool.folder,
            env=dict(os.environ, CLUSTERDDP_RUN_ID=self.spool.run, CLUSTERDDP_HOST=self.spool.host),
            listening=[*listeners],
            score=int(_text("/proc/self/oom_score_adj") or 0),
            cwd=self.plan.cwd,
            argv=[self.plan.python, *self.plan.worker_argv],
            worker_env=self.worker_env,
            log=self.spool.path(LOG),
        )
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as sock:
            sock.settimeout(ANSWER_TIMEOUT)
            try:
                if connect(sock, self.folder) != server.pid:
                    raise DiffersError("another process has its socket")
                send(sock, request._asdict(), handles)
                answer = decoded(ForkServerConnection(sock).line())
                if "refused" in answer:
                    raise DiffersError(str(answer["refused"]))
                if "ready" not in answer:
                    raise DiffersError("it did not answer")
                sock.sendall(b"g")
            except (OSError, NotForkedError) as error:
                raise DiffersError("it does not answer: %s" % error) from None
        self.spool.event("from_warm_server", pid=server.pid)
        if server.packages:
            self.spool.event("preloaded", packages=", ".join(server.packages))
        for reason in server.left_out:
            self.spool.event("not_preloaded", reason=reason)
        return True

    def compare(self, server: LivePreloadServer) -> None:
        """Check that a plain start would give the same as one from the warm server; raises DiffersError."""
        if server.code != os.path.basename(sys.argv[0]):  # its digest
            raise DiffersError("it is of another version")
        if server.python != self.plan.python:
            raise DiffersError("its interpreter is %s" % server.python)
        if list(self.plan.worker_argv[:1]) != ["-u"] or len(self.plan.worker_argv) < 2:
            raise DiffersError("the workers' command line is another kind")
        if server.preload != self.plan.host_settings.preload:
            raise DiffersError("clusterddp_preload was another when it began")
        others = {*server.secrets} ^ {*self.plan.secrets} if server.preload else set()
        matter = sorted(others & {*server.considered} if server.ready else others)
        if matter:
            raise DiffersError("%s is a secret of one run and not of the other" % matter[0])
        server_env, worker_env = _environment_of(server.pid), self.worker_env
        name = differing_variable(server_env, worker_env, server.reads)
        if name:
            raise DiffersError("%s is another" % name)
        for difference in differences(server.pid):
            if difference not in IGNORED_DIFFERENCES:
                raise DiffersError("its %s is another" % difference)
        if _cgroup(server.pid) != _cgroup(os.getpid()):
            raise DiffersError("its cgroup is another")
        if worker_env.get("KRB5CCNAME", "").startswith("KEYRING:") or _has_keys():
            raise DiffersError("this login holds keys in the kernel's keyring")

    def start_for_next_run(self, supervisor: int, *, replace: bool = False) -> None:
        """Start a warm server for the next run, which waits for the end of the process ``supervisor`` (0: none).

        A suitable one is kept. One that suits another project, or waits for the end of another run, is replaced; with
        ``replace`` any is, since it has refused.
        """
        private_folder(os.path.dirname(self.folder))
        with open(self.folder + ".lock", "w", opener=private) as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            server = find(self.state)
            if server and not server.waiting and not replace:
                with contextlib.suppress(DiffersError):
                    self.compare(server)
                    return
            end(self.state)
            private_folder(self.folder)
            self._start(supervisor)

    def _start(self, supervisor: int) -> None:
        """Start the warm server, which first waits for the end of ``supervisor``, and record it in its folder."""
        cwd = os.path.join(self.folder, "cwd-" + os.urandom(8).hex())
        hooks = os.path.join(self.folder, "hook")
        for folder in (cwd, hooks, os.path.join(hooks, "__pycache__")):  # Python would ask the umask
            os.mkdir(folder, 0o700)
        with OpenedCode() as code:
            link_or_copy(code, os.path.join(self.folder, "remote.pyz"))
            write_hook(code, hooks)
        awaited = supervisor, procfs.start_ticks(supervisor) or 0
        settings = "warm %g %d %d" % (self.plan.host_settings.warm, *awaited)
        argv = [self.plan.python, *self.plan.worker_argv]
        wishes = Wishes(self.plan.host_settings.preload, self.plan.secrets, self.plan.cwd, tuple(argv))
        write_json(os.path.join(self.folder, WISHES), to_fields(wishes), durable=False)
        env = fork_server_environment(dict(self.environment), self.folder, settings)
        env = server_environment(env, self.spool.secrets(), preload=bool(self.plan.host_settings.preload))
        pid = _start_detached([self.plan.python, "-c", "", "-u", SCRIPT], env, cwd, os.path.join(self.folder, WARM_LOG))
        server = ServerRecord(
            pid=pid,
            ticks=procfs.start_ticks(pid) or 0,
            boot=procfs.boot_identity(),
            python=self.plan.python,
            code=os.path.basename(sys.argv[0]),
            awaits=awaited,
        )
        write_json(os.path.join(self.folder, RECORD), to_fields(server), durable=False)


def _start_detached(argv: List[str], env: Mapping[str, str], folder: str, log: str) -> int:
    """Start a daemon, by two forks and a session of its own; return its pid."""
    pid_reader, pid_writer = os.pipe()
    intermediate = os.fork()
    if not intermediate:
        try:
            os.setsid()
            pid = os.fork()
            if pid:
                os.write(pid_writer, b"%d" % pid)
                os._exit(0)
            os.chdir(folder)
            null = os.open(os.devnull, os.O_RDONLY)
            out = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
            for number, handle in enumerate((null, out, out)):
                os.dup2(handle, number)
            os.closerange(3, 1024)
            for number in (signal.SIGINT, signal.SIGPIPE, signal.SIGHUP, signal.SIGTERM):
                signal.signal(number, signal.SIG_DFL)
            os.execve(argv[0], argv, dict(env))
        finally:
            os._exit(EXIT_CANNOT_START)
    os.close(pid_writer)
    os.waitpid(intermediate, 0)
    with os.fdopen(pid_reader, "rb") as stream:
        return int(stream.read() or 0)


def _environment_of(pid: int) -> Dict[str, str]:
    """The environment with which a process was started."""
    with open("/proc/%d/environ" % pid, "rb") as stream:
        pairs = (entry.partition(b"=") for entry in stream.read().split(b"\0") if entry)
        return {os.fsdecode(name): os.fsdecode(value) for name, _, value in pairs}


def _cgroup(pid: int) -> List[Any]:
    """A process's cgroups with their limits; the session's number is left out."""
    lines = (_text("/proc/%d/cgroup" % pid) or "").splitlines()
    entries: List[Any] = [re.sub(r"session-\w+\.scope", "session.scope", line) for line in lines]
    for line in lines:
        path = line.split(":", 2)[2] if line.startswith("0::") else ""
        entries += [_text("/sys/fs/cgroup%s/%s" % (path, name)) for name in CGROUP_LIMITS if path]
    return entries


def _text(path: str) -> Optional[str]:
    """A kernel file's text, or None."""
    try:
        with open(path) as stream:
            return stream.read()
    except OSError:  # the kernel has none, so there is nothing to compare
        return None


def _has_keys() -> bool:
    """Whether the kernel keeps keys of this user's for the session: encrypted homes and tickets may depend on them."""
    mine = str(os.getuid())
    entries = (line.split() for line in (_text("/proc/keys") or "").splitlines())
    return any(len(entry) > 7 and entry[5] == mine and entry[7] in KEY_TYPES for entry in entries)
