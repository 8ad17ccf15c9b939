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
from typing import Any, Callable, Dict, List, Optional

from ..helper.request import Request
from ..system import cgroups
from ..system.procfs import LISTENING, available_bytes, tcp_ports
from ..system.small_files import sorted_names
from ..workdir.sync_record import changed_files
from . import infiniband
from .filesystems import extension_locks, folder, no_folder, written
from .login_shell import LoginShell

PATIENCE = 4.0  # seconds for names, folders and paths together
SHARED_MEMORY = "/dev/shm"  # noqa: S108 - inspected, nothing is made there
WRITTEN = ("state", "workdir")  # where a small file is really written
CHANGED = 1000  # most changed files that are listed
LIMITS = ("nofile", "memlock", "nproc")


def health(request: Request) -> Dict[str, Any]:
    """Operation: this host's limits, folders, names, taken ports, login, control groups, and owners of some processes.

    Arguments: ``state``, ``workdir``, ``tmp`` and ``extensions`` (the job's, or null), ``code`` (the project's workdir,
    or null), ``paths`` (to check for existence), ``names`` (to be looked up), ``ports`` (first, last), ``pids``,
    ``login`` (whether one is tried), ``python`` (the job's, or null).

    Returns ``{limits: {nofile: [soft, hard], …} (null: unlimited), available_bytes, infiniband, hcas, taken (ports),
    folders: {state|workdir|tmp|shm: …}, writes: {state|workdir: {ms, error}}, paths: {path: exists}, locks: [{path,
    age_s}], code: [files changed since a sync] (null: no answer), names: {name: {addresses, error}}, login: {python,
    same, error}, cgroup: {memory_bytes, memory_left, cpu_thousandths}, owners: {pid: {user, command}}}``. A folder is
    ``{path, filesystem, network, total_bytes, free_bytes, inodes, free_inodes, writable, error}``. Paths whose check
    did not end in time are missing from ``paths``.
    """
    args = request.args
    login = LoginShell() if args.get("login") else None  # started before there are threads
    wanted = {
        "state": str(args["state"]),
        "workdir": os.path.expanduser(str(args["workdir"])),
        "tmp": os.path.expanduser(str(args.get("tmp") or os.environ.get("TMPDIR") or "/tmp")),  # noqa: S108
        "shm": SHARED_MEMORY,
    }
    names, paths = [str(name) for name in args["names"]], [str(path) for path in args.get("paths") or ()]
    first, last = (int(port) for port in args["ports"])
    questions: Dict[str, Callable[[], Any]] = {"folder " + key: _asking(folder, wanted[key]) for key in wanted}
    questions.update({"write " + key: _asking(written, wanted[key]) for key in WRITTEN})
    questions.update({"name " + name: _asking(addresses, name) for name in names})
    questions.update({"path " + path: _asking(os.path.exists, os.path.expanduser(path)) for path in paths})
    code = os.path.expanduser(str(args.get("code") or ""))
    questions["code"] = lambda: changed_files(wanted["state"], code)[:CHANGED] if code else []
    if args.get("extensions"):
        questions["locks"] = _asking(extension_locks, os.path.expanduser(str(args["extensions"])))
    answers = ask_all(questions, PATIENCE)
    silent = "no answer within %d s" % PATIENCE
    return {
        "limits": limits(),
        "available_bytes": available_bytes(),
        "infiniband": bool(sorted_names("/sys/class/infiniband")),
        "hcas": infiniband.ports(),
        "taken": sorted({port for port in tcp_ports(LISTENING) if first <= port <= last}),
        "folders": {key: answers.get("folder " + key) or no_folder(wanted[key], silent) for key in wanted},
        "writes": {key: answers.get("write " + key) or {"ms": None, "error": silent} for key in WRITTEN},
        "paths": {path: answers["path " + path] for path in paths if "path " + path in answers},
        "locks": answers.get("locks") or [],
        "code": answers.get("code"),
        "names": {name: answers.get("name " + name) or {"addresses": [], "error": silent} for name in names},
        "login": login.answer(args.get("python")) if login else None,
        "cgroup": cgroups.limits(),
        "owners": {str(pid): found for pid in args["pids"] for found in [owner(int(pid))] if found},
    }


def ask_all(questions: Dict[str, Callable[[], Any]], patience: float) -> Dict[str, Any]:
    """The answers that came within ``patience`` seconds; calls that hang are abandoned."""
    answers: Dict[str, Any] = {}
    done = threading.Semaphore(0)

    def ask(key: str, question: Callable[[], Any]) -> None:
        try:
            answers[key] = question()
        finally:
            done.release()

    for key, question in questions.items():
        threading.Thread(target=ask, args=(key, question), daemon=True).start()
    deadline = time.monotonic() + patience
    for _ in questions:
        done.acquire(timeout=max(0.0, deadline - time.monotonic()))
    return dict(answers)


def addresses(name: str) -> Dict[str, Any]:
    """``{addresses, error}``: result of ``getaddrinfo(name)``."""
    try:
        found = socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        return {"addresses": [], "error": str(error)[:200]}
    return {"addresses": sorted({str(entry[4][0]).partition("%")[0] for entry in found}), "error": None}


def limits() -> Dict[str, List[Optional[int]]]:
    """Soft and hard resource limit by name, None for unlimited: a run gets the same."""
    found: Dict[str, List[Optional[int]]] = {}
    for name in LIMITS:
        pair = resource.getrlimit(getattr(resource, "RLIMIT_" + name.upper()))
        found[name] = [None if value == resource.RLIM_INFINITY else value for value in pair]
    return found


def owner(pid: int) -> Optional[Dict[str, str]]:
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
    return {"user": user, "command": command}


def _asking(question: Callable[[str], Any], about: str) -> Callable[[], Any]:
    return lambda: question(about)
