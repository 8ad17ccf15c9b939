"""Facts of this machine: name, kernel, cores, memory, user, and logind settings that end a user's processes.

Everything is read from files and the kernel. No name service is used: a dead one costs minutes.
"""

import glob
import os
import pwd
from typing import Any, Dict, Optional

from ..shared.wire.partial_files import free_bytes
from ..system import cgroups
from ..system.bootstrap import home_folder
from ..system.procfs import boot_identity
from ..system.small_files import text_of

_LOGIND = "/etc/systemd/logind.conf"
_LOGIND_DROP_INS = ("/usr/lib/systemd/logind.conf.d", "/run/systemd/logind.conf.d", "/etc/systemd/logind.conf.d")


def host_facts() -> Dict[str, Any]:
    """Everything of this module, as one JSON object."""
    user = user_name()
    return {
        "hostname": os.uname().nodename,
        "kernel": os.uname().release,
        "cores": len(os.sched_getaffinity(0)),
        "usable_cores": usable_cores(),
        "memory_bytes": memory_bytes(),
        "shm_bytes_free": _free_bytes("/dev/shm"),  # noqa: S108 - looked at, nothing is made there
        "boot": boot_identity(),
        "uid": os.getuid(),
        "user": user,
        "home": home_folder(),
        "login_shell": login_shell(),
        **logind_facts(user, os.getuid()),
    }


def memory_bytes(proc: str = "/proc", root: str = cgroups.ROOT) -> Optional[int]:
    """Bytes of memory that a job here may use: the machine's, or less where a control group limits it."""
    limits = [_total_memory(proc + "/meminfo"), *cgroups.memory_limits(proc + "/self/cgroup", root)]
    known = [limit for limit in limits if limit]
    return min(known) if known else None


def usable_cores(membership: str = cgroups.MEMBERSHIP, root: str = "/sys") -> int:
    """How many cores this process may use at once: by its affinity, and by the quota of its control groups.

    Hardware threads of one core count once, as torch counts its own threads. At least 1.
    """
    siblings = root + "/devices/system/cpu/cpu%d/topology/thread_siblings_list"
    cores = {text_of(siblings % cpu).strip() or str(cpu) for cpu in os.sched_getaffinity(0)}
    quota = cgroups.limits(membership, root + "/fs/cgroup").cpu_thousandths
    return max(1, len(cores) if quota is None else min(len(cores), quota // 1000))


def logind_facts(user: str, uid: int, root: str = "") -> Dict[str, Any]:
    """Whether logind ends or removes what outlives this user's last session: ``{kill_user_processes, remove_ipc}``.

    ``remove_ipc`` concerns shared memory. Lingering users and hosts without systemd are not affected.
    """
    spared = not os.path.isdir(root + "/run/systemd/system") or os.path.exists(root + "/var/lib/systemd/linger/" + user)
    settings = _logind_settings(root)
    only = settings.get("KillOnlyUsers", "").split()
    excluded = settings.get("KillExcludeUsers", "root").split()
    kills = _is_yes(settings.get("KillUserProcesses", "no")) and user not in excluded and (not only or user in only)
    removes = _is_yes(settings.get("RemoveIPC", "yes")) and uid >= 1000  # system users are never touched
    return {"kill_user_processes": kills and not spared, "remove_ipc": removes and not spared}


def user_name() -> str:
    """This account's name; its number where the password database does not know it."""
    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        return os.environ.get("USER", str(os.getuid()))


def login_shell() -> str:
    """This account's login shell."""
    try:
        return pwd.getpwuid(os.getuid()).pw_shell
    except KeyError:
        return os.environ.get("SHELL", "")


def _free_bytes(folder: str) -> Optional[int]:
    try:
        return free_bytes(folder)
    except OSError:  # unknown: the check reports that
        return None


def _total_memory(path: str) -> Optional[int]:
    """The machine's memory in bytes, from /proc/meminfo."""
    for line in text_of(path).splitlines():
        if line.startswith("MemTotal:"):
            return int(line.split()[1]) * 1024
    return None


def _logind_settings(root: str) -> Dict[str, str]:
    """The settings of logind, later files over earlier ones.

    A drop-in hides those of the same name in earlier folders.
    """
    drop_ins = {}
    for folder in _LOGIND_DROP_INS:
        for path in glob.glob(root + folder + "/*.conf"):
            drop_ins[os.path.basename(path)] = path
    settings = {}
    for path in [root + _LOGIND, *(drop_ins[name] for name in sorted(drop_ins))]:
        for line in text_of(path).splitlines():
            key, equals, value = line.partition("=")
            if equals and not key.lstrip().startswith(("#", ";")):
                settings[key.strip()] = value.strip()
    return settings


def _is_yes(value: str) -> bool:
    return value.lower() in ("yes", "true", "on", "1", "y", "t")
