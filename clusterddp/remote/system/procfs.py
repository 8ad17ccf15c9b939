"""The processes of this host as /proc shows them: a snapshot of all, and queries on one."""

import os
from typing import Container, Dict, Iterable, List, NamedTuple, Optional, Set, Tuple

from .small_files import text_of

ESTABLISHED, LISTENING = "01", "0A"  # in /proc/net/tcp
RUN_VARIABLE, HOST_VARIABLE = b"CLUSTERDDP_RUN_ID=", b"CLUSTERDDP_HOST="
DEAD_STATES = ("Z", "X")


class ProcStat(NamedTuple):
    """One process as /proc/<pid>/stat shows it; ``ticks`` is its start time in clock ticks since boot."""

    pid: int
    ticks: int
    parent: int
    session: int
    state: str
    folder: str  # its folder in /proc, or a living thread's where the main thread has ended

    @property
    def identity(self) -> Tuple[int, int]:
        """Pid and start time: a reused pid is another process."""
        return self.pid, self.ticks


def snapshot() -> Dict[int, ProcStat]:
    """Every process visible in /proc by pid, without zombies: a dead process holds no resources."""
    found = (read_process(int(name)) for name in os.listdir("/proc") if name.isdigit())
    return {process.pid: process for process in found if process}


def read_process(pid: int) -> Optional[ProcStat]:
    """One process from /proc/<pid>/stat, or None if it is dead or not visible.

    A process whose main thread has ended looks dead although other threads live: killed while one of its threads is
    held in a driver, it still has its memory and its GPU.
    """
    folder = "/proc/%d" % pid
    fields = stat_fields(folder)
    if fields and fields[0] in DEAD_STATES:
        folder, state = _living_thread(folder)
        fields = [state, *fields[1:]] if folder else []
    if not fields:
        return None
    return ProcStat(pid, int(fields[19]), int(fields[1]), int(fields[3]), fields[0], folder)


def subtree(roots: Iterable[int], table: Dict[int, ProcStat], excluded: Container[int]) -> Set[int]:
    """The pids of the roots and their descendants in ``table``, without the excluded ones and their descendants."""
    children: Dict[int, List[int]] = {}
    for process in table.values():
        children.setdefault(process.parent, []).append(process.pid)
    found: Set[int] = set()
    todo = [pid for pid in roots if pid not in excluded]
    while todo:
        pid = todo.pop()
        if pid not in found:
            found.add(pid)
            todo += [child for child in children.get(pid, ()) if child not in excluded]
    return found


def run_and_host(process: ProcStat) -> Optional[Tuple[str, str]]:
    """``CLUSTERDDP_RUN_ID`` and ``CLUSTERDDP_HOST`` in a process's environment; None if unset or unreadable."""
    run, host = variables(process, RUN_VARIABLE, HOST_VARIABLE)
    return (run, host) if run and host else None


def variables(process: ProcStat, *prefixes: bytes) -> List[str]:
    """The values of variables in a process's environment, each given as ``NAME=``; empty if unset or unreadable."""
    try:
        with open(process.folder + "/environ", "rb") as stream:
            entries = stream.read().split(b"\0")
    except OSError:
        entries = []
    values = (next((entry[len(one) :] for entry in entries if entry.startswith(one)), b"") for one in prefixes)
    return list(map(os.fsdecode, values))


def writes_below(process: ProcStat, folders: Iterable[str]) -> bool:
    """Whether a process has a file below one of the folders open for writing."""
    base, inside = process.folder + "/fd/", tuple(folder + "/" for folder in folders)
    try:
        names = os.listdir(base)
    except OSError:  # gone, or another user's
        return False
    for name in names:
        try:
            # The mode of the link itself shows how the file was opened.
            if os.readlink(base + name).startswith(inside) and os.lstat(base + name).st_mode & 0o200:
                return True
        except OSError:  # closed meanwhile
            continue
    return False


def has_open(folder: str, path: str) -> bool:
    """Whether the process with that folder in /proc has the file ``path`` open."""
    try:
        wanted_stat = os.stat(path)
        return any(_is_open_as("%s/fd/%s" % (folder, name), path, wanted_stat) for name in os.listdir(folder + "/fd"))
    except OSError:  # gone, or another user's
        return False


def _is_open_as(descriptor: str, path: str, own: os.stat_result) -> bool:
    try:
        # By name first: to stat a file of a dead file server would block.
        same_name = os.path.basename(os.readlink(descriptor)) == os.path.basename(path)
        return same_name and os.path.samestat(os.stat(descriptor), own)
    except OSError:  # closed meanwhile
        return False


def cwd_below(process: ProcStat, folders: Iterable[str]) -> bool:
    """Whether a process's working directory is one of the folders, or below one."""
    try:
        cwd = os.readlink(process.folder + "/cwd") + "/"
    except OSError:
        return False
    return cwd.startswith(tuple(folder + "/" for folder in folders))


def command_line(process: ProcStat) -> str:
    """A process's command line, else its name in brackets; only for messages, since a process can change both."""
    try:
        with open(process.folder + "/cmdline", "rb") as stream:
            line = stream.read(400).replace(b"\0", b" ").decode(errors="replace").strip()
        with open(process.folder + "/comm", "rb") as stream:
            return line or "[%s]" % stream.read().decode(errors="replace").strip()
    except OSError:  # it has ended
        return ""


def other_user(process: ProcStat) -> str:
    """The name or number of a process's effective user; empty if that is this user, or the process has ended."""
    users = status(process.folder).get("Uid", "").split()
    if not users:
        return ""
    uid = int(users[1])
    if uid == os.geteuid():
        return ""
    import pwd

    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:  # a user of a directory that does not answer, or of a container
        return str(uid)


def own_children() -> List[int]:
    """The pids of this process's children as the kernel counts them, including those hidden from this user."""
    found: List[int] = []
    for thread in os.listdir("/proc/self/task"):
        # A kernel without CONFIG_PROC_CHILDREN has no such file: what the table shows is all there is to know.
        found += map(int, text_of("/proc/self/task/%s/children" % thread).split())
    return found


def exists(pid: int) -> bool:
    """Whether a process has this pid, visible in /proc or not."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:  # another user's
        pass
    return True


def hides_other_users() -> bool:
    """Whether /proc hides other users' processes from this one (``hidepid``): then not seeing one proves nothing."""
    if os.getuid() == 0:
        return False
    options: List[str] = []
    with open("/proc/self/mounts", encoding="utf-8", errors="surrogateescape") as mounts:
        for line in mounts:
            fields = line.split()
            if fields[1] == "/proc":
                options = fields[3].split(",")
    level = next((option[8:] for option in options if option.startswith("hidepid=")), "0")
    group = next((int(option[4:]) for option in options if option.startswith("gid=")), None)
    return level not in ("0", "off") and group not in (os.getgid(), *os.getgroups())


def _living_thread(folder: str) -> Tuple[str, str]:
    """/proc folder and state of a thread that is not dead; empty if there is none."""
    try:
        threads = os.listdir(folder + "/task")
    except OSError:
        return "", ""
    for thread in threads:
        fields = stat_fields("%s/task/%s" % (folder, thread))
        if fields and fields[0] not in DEAD_STATES:
            return "%s/task/%s" % (folder, thread), fields[0]
    return "", ""


def start_ticks(pid: int) -> Optional[int]:
    """When a process started, in clock ticks since boot; None when it has ended or is hidden.

    With the pid it identifies one process for ever: a reused pid has other ticks.
    """
    fields = stat_fields("/proc/%d" % pid)
    return int(fields[19]) if len(fields) > 19 else None


def is_process(pid: int, ticks: Optional[int]) -> bool:
    """Whether this pid still is the process that started then; also where it has ended and is not yet reaped."""
    return ticks is not None and start_ticks(pid) == ticks


def status(folder: str) -> Dict[str, str]:
    """The lines of ``status`` by their names; empty when the process or thread has ended or is hidden."""
    lines = (line.partition(":") for line in text_of(folder + "/status").splitlines())
    return {name: value.strip() for name, _, value in lines}


def has_signal(mask: str, sig: int) -> bool:
    """Whether a signal is in one of the masks of ``status``, such as ``SigCgt``; an empty one has none."""
    return bool(int(mask or "0", 16) >> (sig - 1) & 1)


def stat_fields(folder: str) -> List[str]:
    """The fields of ``stat`` after the command name: state, parent, …; empty when the process or thread has ended."""
    try:
        with open(folder + "/stat", "rb") as file:
            return file.read().rpartition(b")")[2].decode().split()  # the name may hold anything
    except OSError:
        return []


def tcp_ports(state: str, tables: Iterable[str] = ("/proc/net/tcp", "/proc/net/tcp6")) -> List[int]:
    """The local ports of this host's TCP sockets in a state (``LISTENING``, ``ESTABLISHED``), one for each socket."""
    found: List[int] = []
    for table in tables:
        rows = [line.split() for line in text_of(table).splitlines()[1:]]  # none where the host has no IPv6
        found += [int(row[1].rpartition(":")[2], 16) for row in rows if len(row) > 3 and row[3] == state]
    return found


def boot_id() -> str:
    """The kernel's boot id, which changes with each boot; raises OSError where /proc has none."""
    with open("/proc/sys/kernel/random/boot_id", encoding="utf-8") as stream:
        return stream.read().strip()


def boot_identity() -> str:
    """A string that changes when the host, or the container this process is in, is restarted."""
    try:
        boot = boot_id()
    except OSError:
        boot = "unknown"
    try:
        namespace = os.stat("/proc/self/ns/pid").st_ino
    except OSError:
        namespace = 0
    return "%s:%d:%d" % (boot, namespace, start_ticks(1) or 0)


def has_handler(pid: int, sig: int) -> bool:
    """Whether a process handles ``sig``: only then is it safe to send."""
    return has_signal(status("/proc/%d" % pid).get("SigCgt", ""), sig)


def available_bytes(path: str = "/proc/meminfo") -> Optional[int]:
    """The kernel's ``MemAvailable`` in bytes."""
    try:
        with open(path, encoding="utf-8") as lines:
            return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:")), None)
    except (OSError, ValueError):  # unknown: the caller reports that
        return None


def anonymous_memory() -> int:
    """KiB of this process's memory that is not backed by a file, whether shared with a parent or not."""
    return int((status("/proc/self").get("RssAnon") or "0").split()[0])


def own_memory(pid: int) -> int:
    """KiB of a process's memory that is not backed by a file, shared pages in proportion; 0 if unknown.

    A GPU build of torch maps another 300 MB of libraries, whose pages the kernel takes back when it needs to. Raises
    OSError if the process has ended.
    """
    try:
        with open("/proc/%d/smaps_rollup" % pid) as stream:  # since Linux 4.14
            found = {fields[0]: fields[1] for fields in map(str.split, stream)}
    except FileNotFoundError:
        return 0
    return int(found.get("Pss:", 0)) - int(found.get("Pss_File:", 0))  # the latter since Linux 5.4
