"""The processes of this host as /proc shows them: a table of one moment, and what can be asked of each.

Not here: whose they are (processes/ownership.py), how they are ended (processes/terminate.py).
"""

import os
import pwd
import signal
from typing import Container, Dict, Iterable, List, NamedTuple, Optional, Set, Tuple

# A worker's hook prints all stacks on it; send it only where catches() says so. The operator's machine may have no
# real-time signals and imports this all the same.
STACK_SIGNAL = getattr(signal, "SIGRTMIN", 34) + 7
ESTABLISHED, LISTENING = "01", "0A"  # in /proc/net/tcp
RUN, HOST = b"CLUSTERDDP_RUN_ID=", b"CLUSTERDDP_HOST="
DEAD = ("Z", "X")


class Seen(NamedTuple):
    """A process; with its start time, in clock ticks since boot, the pid names it for ever."""

    pid: int
    ticks: int
    parent: int
    session: int
    state: str
    place: str  # its folder in /proc, or a living thread's where the main thread has ended

    @property
    def name(self) -> Tuple[int, int]:
        """Pid and start time: a reused pid is another process."""
        return self.pid, self.ticks


def table() -> Dict[int, Seen]:
    """Every process that can be seen and is not dead. A dead one whose parent has not noticed holds nothing."""
    found = (look(int(name)) for name in os.listdir("/proc") if name.isdigit())
    return {seen.pid: seen for seen in found if seen}


def look(pid: int) -> Optional[Seen]:
    """One process, or None if it is dead or cannot be seen.

    A process whose main thread has ended looks dead though others live: killed while one thread of many is held
    in a driver, it still has its memory and its GPU.
    """
    place = "/proc/%d" % pid
    fields = stat(place)
    if fields and fields[0] in DEAD:
        place, state = _living_thread(place)
        fields = [state, *fields[1:]] if place else []
    if not fields:
        return None
    return Seen(pid, int(fields[19]), int(fields[1]), int(fields[3]), fields[0], place)


def below(roots: Iterable[int], among: Dict[int, Seen], barred: Container[int]) -> Set[int]:
    """The roots and all that descends from them; a barred process, and all below it, is left out."""
    children: Dict[int, List[int]] = {}
    for seen in among.values():
        children.setdefault(seen.parent, []).append(seen.pid)
    found: Set[int] = set()
    todo = [pid for pid in roots if pid not in barred]
    while todo:
        pid = todo.pop()
        if pid not in found:
            found.add(pid)
            todo += [child for child in children.get(pid, ()) if child not in barred]
    return found


def marks(seen: Seen) -> Optional[Tuple[str, str]]:
    """Run and host by its environment; None if it has none, has overwritten it, or is another user's."""
    try:
        with open(seen.place + "/environ", "rb") as stream:
            entries = stream.read().split(b"\0")
    except OSError:
        return None
    run = next((entry[len(RUN) :] for entry in entries if entry.startswith(RUN)), b"")
    host = next((entry[len(HOST) :] for entry in entries if entry.startswith(HOST)), b"")
    return (os.fsdecode(run), os.fsdecode(host)) if run and host else None


def writes_below(seen: Seen, folders: Iterable[str]) -> bool:
    """Whether it holds a file below one of the folders open for writing."""
    base, inside = seen.place + "/fd/", tuple(folder + "/" for folder in folders)
    try:
        names = os.listdir(base)
    except OSError:  # gone, or another user's
        return False
    for name in names:
        try:
            # The mode of the link itself tells how the file was opened.
            if os.readlink(base + name).startswith(inside) and os.lstat(base + name).st_mode & 0o200:
                return True
        except OSError:  # closed meanwhile
            continue
    return False


def holds(seen: Seen, path: str) -> bool:
    """Whether it has this very file open."""
    base = seen.place + "/fd/"
    try:
        return any(os.readlink(base + name) == path for name in os.listdir(base))
    except OSError:  # gone, another user's, or a file closed meanwhile
        return False


def stands_below(seen: Seen, folders: Iterable[str]) -> bool:
    """Whether its working folder is one of the folders, or below one."""
    try:
        place = os.readlink(seen.place + "/cwd") + "/"
    except OSError:
        return False
    return place.startswith(tuple(folder + "/" for folder in folders))


def command(seen: Seen) -> str:
    """Its command line, else its name in brackets; what it calls itself, which proves nothing."""
    try:
        with open(seen.place + "/cmdline", "rb") as stream:
            line = stream.read(400).replace(b"\0", b" ").decode(errors="replace").strip()
        with open(seen.place + "/comm", "rb") as stream:
            return line or "[%s]" % stream.read().decode(errors="replace").strip()
    except OSError:
        return ""


def other_user(seen: Seen) -> str:
    """Whose rights it has, by name or number; empty if it is this user's, or gone."""
    try:
        with open(seen.place + "/status", "rb") as stream:
            line = next(line for line in stream if line.startswith(b"Uid:"))
    except (OSError, StopIteration):
        return ""
    uid = int(line.split()[2])
    if uid == os.geteuid():
        return ""
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:  # a user of a directory that does not answer, or of a container
        return str(uid)


def own_children() -> List[int]:
    """The pids of this process's children as the kernel counts them, those hidden from this user too."""
    found: List[int] = []
    for thread in os.listdir("/proc/self/task"):
        try:
            with open("/proc/self/task/%s/children" % thread, encoding="ascii") as stream:
                found += [int(word) for word in stream.read().split()]
        except OSError:  # a kernel without CONFIG_PROC_CHILDREN: what the table shows is all there is to know
            continue
    return found


def there(pid: int) -> bool:
    """Whether a process has this number, hidden or not."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:  # another user's
        pass
    return True


def hidden() -> bool:
    """Whether /proc keeps other users' processes from this one (``hidepid``): not seeing one proves nothing then."""
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


def _living_thread(place: str) -> Tuple[str, str]:
    """Folder and state of a thread that is not dead; empty if there is none."""
    try:
        threads = os.listdir(place + "/task")
    except OSError:
        return "", ""
    for thread in threads:
        fields = stat("%s/task/%s" % (place, thread))
        if fields and fields[0] not in DEAD:
            return "%s/task/%s" % (place, thread), fields[0]
    return "", ""


def start_ticks(pid: int) -> Optional[int]:
    """When a process started, in clock ticks since boot; None when it is gone or hidden.

    With the pid it names one process for ever: a reused pid has other ticks.
    """
    fields = stat("/proc/%d" % pid)
    return int(fields[19]) if len(fields) > 19 else None


def stat(place: str) -> List[str]:
    """What the kernel tells of a process or thread after its name: state, parent, …; empty when it is gone."""
    try:
        with open(place + "/stat", "rb") as file:
            return file.read().rpartition(b")")[2].decode().split()  # the name may hold anything
    except OSError:
        return []


def ports(state: str, tables: Iterable[str] = ("/proc/net/tcp", "/proc/net/tcp6")) -> List[int]:
    """This host's ports of all TCP sockets in a state (``LISTENING``, ``ESTABLISHED``), one for each socket."""
    found: List[int] = []
    for table in tables:
        try:
            with open(table, encoding="ascii") as lines:
                rows = [line.split() for line in lines][1:]
        except OSError:  # no IPv6 on this host
            continue
        found += [int(row[1].rpartition(":")[2], 16) for row in rows if len(row) > 3 and row[3] == state]
    return found


def boot_identity() -> str:
    """A string that changes when the host, or the container this process is in, was started anew."""
    try:
        with open("/proc/sys/kernel/random/boot_id") as file:
            boot = file.read().strip()
    except OSError:
        boot = "unknown"
    try:
        namespace = os.stat("/proc/self/ns/pid").st_ino
    except OSError:
        namespace = 0
    return "%s:%d:%d" % (boot, namespace, start_ticks(1) or 0)


def catches(pid: int, sig: int) -> bool:
    """Whether a process has a handler of its own for ``sig``: only then is it safe to send."""
    try:
        with open("/proc/%d/status" % pid) as file:
            for line in file:
                if line.startswith("SigCgt:"):
                    return bool(int(line.split()[1], 16) >> (sig - 1) & 1)
    except (OSError, ValueError, IndexError):
        pass  # gone or hidden: nothing to send to
    return False
