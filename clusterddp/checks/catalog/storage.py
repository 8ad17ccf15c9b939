"""Checks of the folders a run uses: free space, permissions, local or network file system."""

from __future__ import annotations

from typing import TYPE_CHECKING

from clusterddp.checks.catalog.machine import identity
from clusterddp.checks.model import Check, Finding, fail, for_each, missing_data, warn
from clusterddp.checks.needs import FACTS, HEALTH, SHARED
from clusterddp.text.folding import few
from clusterddp.text.paths import shown

if TYPE_CHECKING:
    from collections.abc import Iterable

    from clusterddp.checks.evidence import Evidence
    from clusterddp.inventory import HostEntry
    from clusterddp.remote.shared.probes.health_records import FolderDisk, Health

CATEGORY = "Storage"
_MIB = 1 << 20
_FULL_BELOW, _WARN_BELOW = 100 * _MIB, 1 << 30  # bytes
_FULL_BELOW_INODES, _WARN_BELOW_INODES = 1000, 10_000
_SHARABLE_FOLDERS = ("state", "workdir", "home")
_SLOW_WRITE = 1000  # ms; a local disk takes less than 30, an overloaded file server takes seconds
_FOLDERS = ("state", "workdir", "tmp")


def _examined_folders(health: Health) -> list[tuple[str, FolderDisk]]:
    """The folders that could be examined, by kind."""
    return [(key, folder) for key in _FOLDERS if (folder := health.folders.get(key)) and not folder.error]


def _unanswering_folders(entry: HostEntry, health: Health) -> Finding | None:
    for key in _FOLDERS:
        result = health.folders.get(key)
        if result is None:
            return missing_data(entry.name, f"{key} was not told")
        if result.error:
            return fail(entry.name, f"{key} {result.path}: {result.error}")
    return None


def _low_space(entry: HostEntry, health: Health) -> Finding | None:
    low = []
    for key, folder in _examined_folders(health):
        if folder.free_bytes < _WARN_BELOW:
            low.append((folder.free_bytes < _FULL_BELOW, f"{key} {folder.path}: {folder.free_bytes // _MIB} MiB free"))
        elif folder.inodes and folder.free_inodes < _WARN_BELOW_INODES:
            text = f"{key} {folder.path}: {folder.free_inodes} inodes free"
            low.append((folder.free_inodes < _FULL_BELOW_INODES, text))
    if not low:
        return None
    return (fail if any(bad for bad, _ in low) else warn)(entry.name, "; ".join(text for _, text in low))


def _unwritable_folders(entry: HostEntry, health: Health) -> Finding | None:
    unwritable = {f"{key} {folder.path}": "" for key, folder in _examined_folders(health) if not folder.writable}
    for key, result in health.writes.items():
        if result.error and (folder := health.folders.get(key)):
            unwritable[f"{key} {folder.path}"] = f" ({result.error})"
    return fail(entry.name, "cannot write: " + ", ".join(map("".join, unwritable.items()))) if unwritable else None


def _changed_code(entry: HostEntry, health: Health) -> Finding | None:
    if health.code is None:
        return missing_data(entry.name, "no answer in time")
    workdir = health.folders.get("workdir")
    if not health.code or (workdir and workdir.network):  # a workdir on a network may be changed by another host's sync
        return None
    return warn(entry.name, f"the code there was changed since it was synced: {few(list(map(shown, health.code)), 3)}")


def _broken_links(entry: HostEntry, health: Health) -> Finding | None:
    unanswered = [target for target in entry.links.values() if target not in health.paths]
    if unanswered:
        return missing_data(entry.name, f"{few(unanswered, 3)} did not answer in time")
    missing = [f"{name} to {target}" for name, target in sorted(entry.links.items()) if not health.paths[target]]
    return fail(entry.name, f"links that lead to nothing: {few(missing, 3)}") if missing else None


def _slow_writes(entry: HostEntry, health: Health) -> Finding | None:
    slow = [
        f"{result.ms / 1000:.1f} s in {key} {folder.path}"
        for key, result in health.writes.items()
        if result.ms is not None and result.ms >= _SLOW_WRITE and (folder := health.folders.get(key))
    ]
    return warn(entry.name, f"a file of 4 KiB was on disk after {', '.join(slow)}") if slow else None


def _network_folders(entry: HostEntry, health: Health) -> Finding | None:
    state, workdir = health.folders.get("state"), health.folders.get("workdir")
    if state and state.network:
        return fail(
            entry.name,
            f"state {state.path} lies on {state.filesystem}",
            fix="set clusterddp_state to a folder on a local disk",
        )
    if workdir and workdir.network:
        return warn(entry.name, f"workdir {workdir.path} lies on {workdir.filesystem}")
    return None


def _shared_folders(evidence: Evidence) -> Iterable[Finding]:
    machines = {entry.name: identity(facts) for entry, facts in evidence.facts}
    for key in _SHARABLE_FOLDERS:
        groups: dict[tuple[str, ...], None] = {}
        for report in evidence.hosts:
            others = {*(SHARED.of(report) or {}).get(key, ())}
            group = [
                name
                for name, machine in machines.items()
                if name == report.name or (name in others and machine != machines[report.name])
            ]
            if len(group) > 1:
                groups.setdefault(tuple(group))
        examined = [(entry.name, health.folders.get(key)) for entry, health in HEALTH.each(evidence)]
        on_network = {name for name, folder in examined if folder and folder.network}
        yield from (_shared_folder_finding(key, group, on_network=set(group) <= on_network) for group in groups)
    for report in evidence.hosts:
        if set(SHARED.of(report) or ()) < set(_SHARABLE_FOLDERS):
            yield missing_data(report.name, "a mark could not be left in its folders")


def _shared_folder_finding(key: str, group: tuple[str, ...], *, on_network: bool) -> Finding:
    """The finding for one folder that several hosts share; ``on_network``: it lies on a network file system."""
    if key == "state":
        fix = "set clusterddp_state to a folder on a local disk of each host, such as /var/tmp/clusterddp-NAME"
        return Finding(verdict="warn", hosts=group, message="they have one state folder, for the logs of all", fix=fix)
    if key == "workdir" and not on_network:
        message = "they have one workdir, on a file system that is not known as one of a network"
        return Finding(verdict="warn", hosts=group, message=message)
    return Finding(verdict="pass", hosts=group, message=f"they have one {key}")


CHECKS = (
    Check(
        name="mounts",
        category=CATEGORY,
        title="the folders of a run answer",
        judge=for_each(HEALTH, _unanswering_folders),
        needs=(HEALTH,),
        symptom="processes that hang in state D and cannot be killed, or Stale file handle",
        fix="mount it anew (`mount -o remount`, `umount -l`), and see that the file server lives",
    ),
    Check(
        name="disk",
        category=CATEGORY,
        title="there is room for code, logs and checkpoints",
        judge=for_each(HEALTH, _low_space),
        needs=(HEALTH,),
        after=("mounts",),
        symptom="No space left on device, in the middle of a checkpoint",
        fix="free some (`df -h`, `df -i`), or set clusterddp_workdir and clusterddp_state to a larger disk",
    ),
    Check(
        name="writable",
        category=CATEGORY,
        title="the folders of a run can be written",
        judge=for_each(HEALTH, _unwritable_folders),
        needs=(HEALTH,),
        after=("mounts", "disk"),
        symptom="Read-only file system, or Permission denied",
        fix="mend owner and mode, or set clusterddp_workdir and clusterddp_state to folders of your own",
    ),
    Check(
        name="write-time",
        category=CATEGORY,
        title="a small file is on disk at once",
        judge=for_each(HEALTH, _slow_writes),
        needs=(HEALTH,),
        after=("mounts", "disk", "writable"),
        symptom="all ranks wait while one of them writes its checkpoint",
        fix="see what else uses that disk (`iostat -x 1`), or set clusterddp_workdir and clusterddp_state to another",
    ),
    Check(
        name="code",
        category=CATEGORY,
        title="the project's code is as it was synced",
        judge=for_each(HEALTH, _changed_code),
        needs=(HEALTH,),
        after=("mounts",),
        symptom="ranks that differ: shapes or collectives that do not match, a fix that works on one host only",
        fix="make the change in the project: the next run puts its files there, and keeps those aside",
    ),
    Check(
        name="data-links",
        category=CATEGORY,
        title="what clusterddp_links names is there",
        judge=for_each(HEALTH, _broken_links),
        needs=(HEALTH,),
        after=("mounts",),
        symptom="FileNotFoundError: No such file or directory: 'data/...', on one host only",
        fix="mount or copy it there (`clusterddp push`), or set that host's own path in its clusterddp_links",
    ),
    Check(
        name="local-state",
        category=CATEGORY,
        title="state and workdir lie on local disks",
        judge=for_each(HEALTH, _network_folders),
        needs=(HEALTH,),
        after=("mounts",),
        symptom="training stands still when the file server does; hosts overwrite each other's files",
        fix="nothing, if it is meant: the hosts share what they write; else set clusterddp_workdir",
    ),
    Check(
        name="shared",
        category=CATEGORY,
        title="the hosts have folders of their own",
        judge=_shared_folders,
        needs=(FACTS, HEALTH, SHARED),
        after=("mounts", "disk", "writable", "local-state"),
        symptom="syncs that overwrite each other, logs that stop when one file server does or one quota is used up",
        fix="set clusterddp_workdir to a folder of each host's own, or to one on a network file system",
    ),
)
