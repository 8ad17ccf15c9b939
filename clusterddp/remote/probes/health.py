"""The operation ``health``: limits, folders, names, ports, login and control groups of this host, for the doctor.

Whatever may hang (on a dead name server, a dead file server) runs in a thread of its own that is abandoned after a
timeout: the answer says so, and still has the rest.
"""

import os
import pwd
import resource
import socket
import threading
import time
from typing import Any, Callable, Dict, Optional, Tuple

from ..helper.request import Request
from ..shared.probes.health_records import Cgroup, Health, HealthRequest, Lookup, PortOwner, Write
from ..shared.schema.record import to_fields
from ..system import cgroups
from ..system.procfs import LISTENING, available_bytes, status, tcp_ports
from ..system.small_files import sorted_names
from ..workdir.sync_record import changed_files
from . import infiniband
from .filesystems import describe_folder, extension_locks, try_write, unknown_folder
from .kernel_counters import kernel_counters
from .login_shell import LoginShell

ANSWER_TIMEOUT = 4.0  # seconds for names, folders and paths together
SHARED_MEMORY = "/dev/shm"  # noqa: S108 - inspected, nothing is made there
WRITE_TESTED = ("state", "workdir")  # where a small file is really written
MAX_CHANGED = 1000  # changed files that are listed
LIMIT_NAMES = ("nofile", "memlock", "nproc")
CAP_IPC_LOCK = 14


def health(request: Request) -> Dict[str, Any]:
    """Operation: this host's limits, folders, names, taken ports, login, control groups, and owners of some processes.

    Takes a ``HealthRequest``, returns a ``Health`` (shared/probes/health_records.py).
    """
    asked = request.read_args(HealthRequest)
    login = LoginShell() if asked.login else None  # started before there are threads
    folders = {
        "state": request.state,
        "workdir": os.path.expanduser(asked.workdir),
        "tmp": os.path.expanduser(asked.tmp or os.environ.get("TMPDIR") or "/tmp"),  # noqa: S108
        "shm": SHARED_MEMORY,
    }
    answers = ask_all(_questions(asked, folders), ANSWER_TIMEOUT)
    no_answer = "no answer within %d s" % ANSWER_TIMEOUT
    first, last = asked.ports
    names = {name: answers.get("name " + name) or Lookup(error=no_answer) for name in asked.names}
    return to_fields(
        Health(
            limits=limits(),
            available_bytes=available_bytes(),
            infiniband=bool(sorted_names("/sys/class/infiniband")),
            hcas=tuple(infiniband.ports()),
            taken=tuple(sorted({port for port in tcp_ports(LISTENING) if first <= port <= last})),
            folders={key: answers.get("folder " + key) or unknown_folder(folders[key], no_answer) for key in folders},
            names=names,
            owners={pid: found for pid in asked.pids for found in [owner(pid)] if found},
            writes={key: answers.get("write " + key) or Write(error=no_answer) for key in WRITE_TESTED},
            paths={path: answers["path " + path] for path in asked.paths if "path " + path in answers},
            locks=answers.get("locks") or {},
            code=answers.get("code"),
            login=login.answer(asked.python) if login else None,
            cgroup=Cgroup(**cgroups.limits()._asdict()),
            tables=kernel_counters().tables,
        )
    )


def _questions(asked: HealthRequest, folders: Dict[str, str]) -> Dict[str, Callable[[], Any]]:
    """What may hang, each as a call by the name of its answer; ``folders`` by name."""
    questions: Dict[str, Callable[[], Any]] = {}
    questions.update({"folder " + key: _bind_argument(describe_folder, folders[key]) for key in folders})
    questions.update({"write " + key: _bind_argument(try_write, folders[key]) for key in WRITE_TESTED})
    questions.update({"name " + name: _bind_argument(look_up, name) for name in asked.names})
    questions.update({"path " + path: _bind_argument(os.path.exists, os.path.expanduser(path)) for path in asked.paths})
    state, code = folders["state"], os.path.expanduser(asked.code)
    questions.update(code=lambda: changed_files(state, code)[:MAX_CHANGED] if code else [])
    if asked.extensions:
        questions.update(locks=_bind_argument(extension_locks, os.path.expanduser(asked.extensions)))
    return questions


def ask_all(questions: Dict[str, Callable[[], Any]], timeout: float) -> Dict[str, Any]:
    """The answers that came within ``timeout`` seconds; calls that hang are abandoned."""
    answers: Dict[str, Any] = {}
    done = threading.Semaphore(0)

    def ask(key: str, question: Callable[[], Any]) -> None:
        try:
            answers[key] = question()
        finally:
            done.release()

    for key, question in questions.items():
        threading.Thread(target=ask, args=(key, question), daemon=True).start()
    deadline = time.monotonic() + timeout
    for _ in questions:
        done.acquire(timeout=max(0.0, deadline - time.monotonic()))
    return dict(answers)


def look_up(name: str) -> Lookup:
    """The addresses of a host name, or why it cannot be resolved."""
    try:
        found = socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        return Lookup(error=str(error)[:200])
    return Lookup(addresses=tuple(sorted({str(entry[4][0]).partition("%")[0] for entry in found})))


def limits() -> Dict[str, Tuple[Optional[int], Optional[int]]]:
    """Soft and hard resource limit by name, None for unlimited: a run gets the same."""
    found: Dict[str, Tuple[Optional[int], Optional[int]]] = {}
    for name in LIMIT_NAMES:
        pair = resource.getrlimit(getattr(resource, "RLIMIT_" + name.upper()))
        soft, hard = (None if value == resource.RLIM_INFINITY else value for value in pair)
        found[name] = soft, hard
    if _has_capability(CAP_IPC_LOCK):
        found["memlock"] = None, None  # the kernel does not apply it
    return found


def _has_capability(number: int) -> bool:
    """Whether this process has a capability, as root has outside of containers."""
    return bool(int(status("/proc/self").get("CapEff", "0"), 16) >> number & 1)


def owner(pid: int) -> Optional[PortOwner]:
    """The user and command of a process; None where it is not visible."""
    try:
        uid = os.stat("/proc/%d" % pid).st_uid
        with open("/proc/%d/comm" % pid, encoding="utf-8", errors="replace") as file:
            command = file.read().strip()
    except OSError:
        return None
    try:
        user = pwd.getpwuid(uid).pw_name
    except KeyError:
        user = str(uid)
    return PortOwner(user=user, command=command)


def _bind_argument(question: Callable[[str], Any], argument: str) -> Callable[[], Any]:
    """A call of ``question`` with its argument, for a thread."""
    return lambda: question(argument)
