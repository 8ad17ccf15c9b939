"""The operation ``health``: what the doctor asks of a host beyond its facts; nothing is changed here.

Whatever may hang (a dead name server, a dead file server) is asked in a thread of its own and given up after its
time: then the answer says so, and the rest is there all the same.
Not here: facts that a run needs too (probe.py), the network between hosts (netcheck.py), judging (clusterddp/checks).
"""

import os
import pwd
import resource
import socket
import threading
import time
from typing import Any, Callable, Dict, List, Optional

from .proc import LISTENING, ports
from .request import Request
from .state import NETWORK_FILESYSTEMS, filesystem_type

PATIENCE = 4.0  # seconds for names and folders together
SHARED_MEMORY = "/dev/shm"  # noqa: S108 - looked at, nothing is made there
LIMITS = ("nofile", "memlock", "nproc")


def health(request: Request) -> Dict[str, Any]:
    """This host's limits, folders, names, taken ports, and whose some processes are.

    Args of the request: ``state``, ``workdir``, ``names`` (to be looked up), ``ports`` (first, last), ``pids``.

    Returns:
        ``{limits: {nofile: [soft, hard], …} (null: none), available_bytes, infiniband, taken (ports), folders:
        {state|workdir|tmp|shm: …}, names: {name: {addresses, error}}, owners: {pid: {user, command}}}``. A folder is
        ``{path, filesystem, network, total_bytes, free_bytes, inodes, free_inodes, writable, error}``.
    """
    args = request.args
    wanted = {
        "state": str(args["state"]),
        "workdir": os.path.expanduser(str(args["workdir"])),
        "tmp": os.environ.get("TMPDIR", "/tmp"),  # noqa: S108 - looked at
        "shm": SHARED_MEMORY,
    }
    names = [str(name) for name in args["names"]]
    first, last = (int(port) for port in args["ports"])
    questions: Dict[str, Callable[[], Any]] = {"folder " + key: _asking(folder, wanted[key]) for key in wanted}
    questions.update({"name " + name: _asking(addresses, name) for name in names})
    answers = ask_all(questions, PATIENCE)
    silent = "no answer within %d s" % PATIENCE
    return {
        "limits": limits(),
        "available_bytes": available_bytes(),
        "infiniband": bool(_listing("/sys/class/infiniband")),
        "taken": sorted({port for port in ports(LISTENING) if first <= port <= last}),
        "folders": {key: answers.get("folder " + key) or no_folder(wanted[key], silent) for key in wanted},
        "names": {name: answers.get("name " + name) or {"addresses": [], "error": silent} for name in names},
        "owners": {str(pid): found for pid in args["pids"] for found in [owner(int(pid))] if found},
    }


def ask_all(questions: Dict[str, Callable[[], Any]], patience: float) -> Dict[str, Any]:
    """The answers that came within ``patience`` seconds; who hangs is left behind."""
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
    """``{addresses, error}``: what this host takes a name for."""
    try:
        found = socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        return {"addresses": [], "error": str(error)[:200]}
    return {"addresses": sorted({str(entry[4][0]).partition("%")[0] for entry in found}), "error": None}


def folder(path: str) -> Dict[str, Any]:
    """The file system below a folder, or below the first of its parents that is there."""
    here = path
    while not os.path.isdir(here) and here != os.path.dirname(here):
        here = os.path.dirname(here)
    try:
        info, kind = os.statvfs(here), filesystem_type(here)
    except OSError as error:
        return no_folder(path, str(error))
    return {
        "path": path,
        "filesystem": kind,
        "network": kind in NETWORK_FILESYSTEMS,
        "total_bytes": info.f_blocks * info.f_frsize,
        "free_bytes": info.f_bavail * info.f_frsize,
        "inodes": info.f_files,
        "free_inodes": info.f_favail,
        "writable": os.access(here, os.W_OK | os.X_OK) and not info.f_flag & os.ST_RDONLY,
        "error": None,
    }


def no_folder(path: str, error: str) -> Dict[str, Any]:
    """A folder that could not be looked at."""
    told: Dict[str, Any] = dict.fromkeys(("total_bytes", "free_bytes", "inodes", "free_inodes"), 0)
    told.update(path=path, filesystem="", network=False, writable=False, error=error)
    return told


def limits() -> Dict[str, List[Optional[int]]]:
    """Soft and hard limit by name; None where there is none. What a run is started with."""
    found: Dict[str, List[Optional[int]]] = {}
    for name in LIMITS:
        pair = resource.getrlimit(getattr(resource, "RLIMIT_" + name.upper()))
        found[name] = [None if value == resource.RLIM_INFINITY else value for value in pair]
    return found


def available_bytes(path: str = "/proc/meminfo") -> Optional[int]:
    """Memory that could be had now without swapping, by the kernel's own reckoning."""
    try:
        with open(path, encoding="ascii") as lines:
            return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:")), None)
    except (OSError, ValueError):
        return None


def owner(pid: int) -> Optional[Dict[str, str]]:
    """Whose a process is, and what it is called; None where it cannot be seen."""
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


def _listing(path: str) -> List[str]:
    try:
        return os.listdir(path)
    except OSError:
        return []
