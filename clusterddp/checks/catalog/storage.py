"""Checks of the folders a run uses: free space, permissions, local or network file system."""

from __future__ import annotations

from typing import TYPE_CHECKING

from clusterddp.checks.catalog.machine import identity
from clusterddp.checks.model import Check, Finding, fail, for_each, unknown, warn
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
_FULL, _TIGHT = 100 * _MIB, 1 << 30  # bytes
_NO_INODES, _FEW_INODES = 1000, 10_000
_SHARED = ("state", "workdir", "home")
_SLOW = 1000  # ms; a local disk takes less than 30, an overloaded file server takes seconds
_FOLDERS = ("state", "workdir", "tmp")


def _folders(health: Health) -> list[tuple[str, FolderDisk]]:
    """The folders that could be examined, by kind."""
    return [(key, one) for key in _FOLDERS if (one := health.folders.get(key)) and not one.error]


def _mounts(entry: HostEntry, health: Health) -> Finding | None:
    for key in _FOLDERS:
        found = health.folders.get(key)
        if found is None:
            return unknown(entry.name, f"could not look: {key} was not told")
        if found.error:
            return fail(entry.name, f"{key} {found.path}: {found.error}")
    return None


def _disk(entry: HostEntry, health: Health) -> Finding | None:
    low = []
    for key, one in _folders(health):
        if one.free_bytes < _TIGHT:
            low.append((one.free_bytes < _FULL, f"{key} {one.path}: {one.free_bytes // _MIB} MiB free"))
        elif one.inodes and one.free_inodes < _FEW_INODES:
            low.append((one.free_inodes < _NO_INODES, f"{key} {one.path}: {one.free_inodes} inodes free"))
    if not low:
        return None
    return (fail if any(bad for bad, _ in low) else warn)(entry.name, "; ".join(text for _, text in low))


def _writable(entry: HostEntry, health: Health) -> Finding | None:
    shut = {f"{key} {one.path}": "" for key, one in _folders(health) if not one.writable}
    for key, found in health.writes.items():
        if found.error and (one := health.folders.get(key)):
            shut[f"{key} {one.path}"] = f" ({found.error})"
    return fail(entry.name, "cannot write: " + ", ".join(map("".join, shut.items()))) if shut else None


def _code(entry: HostEntry, health: Health) -> Finding | None:
    if health.code is None:
        return unknown(entry.name, "could not look: no answer in time")
    workdir = health.folders.get("workdir")
    if not health.code or (workdir and workdir.network):  # a workdir on a network may be changed by another host's sync
        return None
    return warn(entry.name, f"the code there was changed since it was synced: {few(list(map(shown, health.code)), 3)}")


def _links(entry: HostEntry, health: Health) -> Finding | None:
    unanswered = [target for target in entry.links.values() if target not in health.paths]
    if unanswered:
        return unknown(entry.name, f"could not look: {few(unanswered, 3)} did not answer in time")
    missing = [f"{name} to {target}" for name, target in sorted(entry.links.items()) if not health.paths[target]]
    return fail(entry.name, f"links that lead to nothing: {few(missing, 3)}") if missing else None


def _slow(entry: HostEntry, health: Health) -> Finding | None:
    slow = [
        f"{found.ms / 1000:.1f} s in {key} {one.path}"
        for key, found in health.writes.items()
        if found.ms is not None and found.ms >= _SLOW and (one := health.folders.get(key))
    ]
    return warn(entry.name, f"a file of 4 KiB was on disk after {', '.join(slow)}") if slow else None


def _state_place(entry: HostEntry, health: Health) -> Finding | None:
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


def _shared(evidence: Evidence) -> Iterable[Finding]:
    machines = {entry.name: identity(facts) for entry, facts in evidence.facts}
    for key in _SHARED:
        groups: dict[tuple[str, ...], None] = {}
        for seen in evidence.hosts:
            others = (SHARED.of(seen) or {}).get(key, ())
            group = [
                name
                for name, machine in machines.items()
                if name == seen.name or (name in others and machine != machines[seen.name])
            ]
            if len(group) > 1:
                groups.setdefault(tuple(group))
        known = {
            entry.name for entry, health in HEALTH.each(evidence) if (one := health.folders.get(key)) and one.network
        }
        yield from (_common(key, group, known=set(group) <= known) for group in groups)
    for seen in evidence.hosts:
        if set(SHARED.of(seen) or ()) < set(_SHARED):
            yield unknown(seen.name, "could not look: a mark could not be left in its folders")


def _common(key: str, group: tuple[str, ...], *, known: bool) -> Finding:
    """The finding for one folder that several hosts share; ``known``: it lies on a network file system."""
    if key == "state":
        fix = "set clusterddp_state to a folder on a local disk of each host, such as /var/tmp/clusterddp-NAME"
        return Finding(verdict="warn", hosts=group, message="they have one state folder, for the logs of all", fix=fix)
    if key == "workdir" and not known:
        message = "they have one workdir, on a file system that is not known as one of a network"
        return Finding(verdict="warn", hosts=group, message=message)
    return Finding(verdict="pass", hosts=group, message=f"they have one {key}")


CHECKS = (
    Check(
        name="mounts",
        category=CATEGORY,
        title="the folders of a run answer",
        judge=for_each(HEALTH, _mounts),
        needs=(HEALTH,),
        symptom="processes that hang in state D and cannot be killed, or Stale file handle",
        fix="mount it anew (`mount -o remount`, `umount -l`), and see that the file server lives",
    ),
    Check(
        name="disk",
        category=CATEGORY,
        title="there is room for code, logs and checkpoints",
        judge=for_each(HEALTH, _disk),
        needs=(HEALTH,),
        after=("mounts",),
        symptom="No space left on device, in the middle of a checkpoint",
        fix="free some (`df -h`, `df -i`), or set clusterddp_workdir and clusterddp_state to a larger disk",
    ),
    Check(
        name="writable",
        category=CATEGORY,
        title="the folders of a run can be written",
        judge=for_each(HEALTH, _writable),
        needs=(HEALTH,),
        after=("mounts", "disk"),
        symptom="Read-only file system, or Permission denied",
        fix="mend owner and mode, or set clusterddp_workdir and clusterddp_state to folders of your own",
    ),
    Check(
        name="write-time",
        category=CATEGORY,
        title="a small file is on disk at once",
        judge=for_each(HEALTH, _slow),
        needs=(HEALTH,),
        after=("mounts", "disk", "writable"),
        symptom="all ranks wait while one of them writes its checkpoint",
        fix="see what else uses that disk (`iostat -x 1`), or set clusterddp_workdir and clusterddp_state to another",
    ),
    Check(
        name="code",
        category=CATEGORY,
        title="the project's code is as it was synced",
        judge=for_each(HEALTH, _code),
        needs=(HEALTH,),
        after=("mounts",),
        symptom="ranks that differ: shapes or collectives that do not match, a fix that works on one host only",
        fix="make the change in the project: the next run puts its files there, and keeps those aside",
    ),
    Check(
        name="data-links",
        category=CATEGORY,
        title="what clusterddp_links names is there",
        judge=for_each(HEALTH, _links),
        needs=(HEALTH,),
        after=("mounts",),
        symptom="FileNotFoundError: No such file or directory: 'data/...', on one host only",
        fix="mount or copy it there (`clusterddp push`), or set that host's own path in its clusterddp_links",
    ),
    Check(
        name="local-state",
        category=CATEGORY,
        title="state and workdir lie on local disks",
        judge=for_each(HEALTH, _state_place),
        needs=(HEALTH,),
        after=("mounts",),
        symptom="training stands still when the file server does; hosts overwrite each other's files",
        fix="nothing, if it is meant: the hosts share what they write; else set clusterddp_workdir",
    ),
    Check(
        name="shared",
        category=CATEGORY,
        title="the hosts have folders of their own",
        judge=_shared,
        needs=(FACTS, HEALTH, SHARED),
        after=("mounts", "disk", "writable", "local-state"),
        symptom="syncs that overwrite each other, logs that stop when one file server does or one quota is used up",
        fix="set clusterddp_workdir to a folder of each host's own, or to one on a network file system",
    ),
)
