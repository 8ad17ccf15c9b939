"""Tabulate what ``down`` removed, what stays, and why, host by host."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from clusterddp.cli.command_lines import complete_commands
from clusterddp.cli.tables import Table, escape, show
from clusterddp.remote.shared.text.counted import counted
from clusterddp.text.folding import folded_names
from clusterddp.text.units import human_size

if TYPE_CHECKING:
    from collections.abc import Container, Iterable, Sequence

    from clusterddp.environments.removal import EnvironmentFound
    from clusterddp.remote.shared.cleanup.cleanup_records import WorkdirHeld
    from clusterddp.runs.cleanup import Cleaned
    from clusterddp.runs.holdings import EverythingRemoved, Holdings

REMOVED, STAYS, FAILED, WILL_GO = "removed", "stays", "failed", "will go"
_ORDER = (FAILED, WILL_GO, REMOVED, STAYS)


class DownRow(NamedTuple):
    """One row of the table: an item on one host, and whether it was removed."""

    host: str
    outcome: str
    size: int | None
    what: str


def print_rows(rows: Iterable[DownRow]) -> None:
    """Print the rows as one table; hosts with equal rows share a line, with the largest size among them."""
    groups: dict[tuple[str, str], list[DownRow]] = {}
    for row in rows:
        groups.setdefault((row.outcome, row.what), []).append(row)
    table = Table("hosts", "outcome", "size", "what")
    for (outcome, what), group in sorted(groups.items(), key=lambda item: _ORDER.index(item[0][0])):
        size = max((row.size for row in group if row.size is not None), default=None)
        hosts = folded_names(list(dict.fromkeys(row.host for row in group)), separator=",")
        table.add(escape(hosts), outcome, "-" if size is None else human_size(size), escape(complete_commands(what)))
    show(table, stderr=True)


def rows_of_cleanup(cleaned: Sequence[Cleaned], again: str) -> list[DownRow]:
    """Return rows for what ``down`` removed and what it could not; ``again`` is the command that was typed."""
    return [row for host in cleaned for row in _rows_of_host(host, f"`{again}` again finishes the work")]


def _rows_of_host(host: Cleaned, finish: str) -> list[DownRow]:
    """Return one host's rows of ``rows_of_cleanup``; ``finish`` says how to finish what failed."""
    if host.error:
        error = host.error.removeprefix(f"{host.host}: ")
        return [DownRow(host.host, FAILED, None, f"{error}; {finish}")]
    counts = ((host.spools, "spool"), (host.run_dirs, "run dir"), (host.helpers, "helper"), (host.warm, "warm server"))
    removed = ", ".join(counted(int(count), what) for count, what in counts if count)
    gone = "; nothing of clusterddp is left" if host.nothing_left else ""
    rows = [DownRow(host.host, REMOVED, host.bytes or None, f"{removed}{gone}")] if removed else []
    if host.named_workdirs:
        folders = ", ".join(host.named_workdirs.removed)
        rows += [DownRow(host.host, REMOVED, host.named_workdirs.bytes, folders)] if folders else []
        rows += [DownRow(host.host, FAILED, None, f"{path}: {why}") for path, why in host.named_workdirs.kept]
        if host.named_workdirs.error:
            rows.append(DownRow(host.host, FAILED, None, f"{host.named_workdirs.error}; its folders stay; {finish}"))
    if host.environments and host.environments.error:
        rows.append(DownRow(host.host, FAILED, None, f"{host.environments.error}; its environments stay; {finish}"))
    elif host.environments:
        done = host.environments.get()
        rows.append(DownRow(host.host, REMOVED, done.bytes, counted(done.removed, "environment")))
    rows += [DownRow(host.host, FAILED, None, f"{path}: {why}; {finish}") for path, why in host.left]
    why = "it has processes here; `clusterddp stop {}` ends them"
    return rows + [DownRow(host.host, STAYS, None, f"run {run}: {why.format(run)}") for run in host.kept]


def rows_that_stay(
    held: Sequence[Holdings],  # what the hosts held before
    environments: Sequence[EnvironmentFound],  # the environments that were not to be removed
    cleaned: Sequence[Cleaned],  # what was removed from each host
    *,
    workdir: str,  # the end of the path of the project's workdir
    stopped: Container[str] = (),  # the runs that were stopped meanwhile
) -> list[DownRow]:
    """Return rows for what ``down`` leaves on hosts, and why."""
    results = {result.host: result for result in cleaned}
    # The folders that `run --workdir` made and that were removed: of one that hosts share, one host reports it.
    removed = {
        _folder_key(host, folder)
        for host in held
        if (gone := results[host.host].named_workdirs)
        for folder in host.workdirs
        if folder.path in gone.removed
    }
    rows = []
    for host in held:
        result = results[host.host]
        rows += [
            DownRow(host.host, STAYS, folder.bytes, f"{folder.path}: {_why_workdir_stays(folder, workdir, stopped)}")
            for folder in host.workdirs
            if _folder_key(host, folder) not in removed
        ]
        if result.runs_left:
            left = counted(result.runs_left, "run")
            rows.append(DownRow(host.host, STAYS, None, f"{left} on record: 30 days, or with --purge"))
        rows += _rows_of_pushed(host)
    for env in environments:
        source = f" of {env.lock}" if env.lock else ""
        rows.append(DownRow(env.host, STAYS, env.bytes, f"environment {env.ident[:4]}{source}: {env.stays}"))
    return rows


def _folder_key(host: Holdings, folder: WorkdirHeld) -> object:
    """Return a key that is equal on all hosts that share a folder; without an identifier no other host has it."""
    return folder.ident or (host.host, folder.path)


def _why_workdir_stays(folder: WorkdirHeld, workdir: str, stopped: Container[str]) -> str:
    """Return why ``down`` leaves a workdir; ``workdir`` and ``stopped`` as in ``rows_that_stay``."""
    live = [run for run in folder.live if run not in stopped]
    if live:
        return f"run {', '.join(live)} is live in it"
    whose = "this project's code and data" if workdir and folder.path.endswith(workdir) else "code and data"
    return f"{whose}; --everything removes it"


def _rows_of_pushed(host: Holdings) -> list[DownRow]:
    """Return a row for each folder outside the workdirs with files of ``push``: they are never removed."""
    return [
        DownRow(host.host, STAYS, None, f"{counted(count, 'file')} that you have pushed to {path}")
        for path, count in host.pushed
    ]


def rows_of_holdings(held: Sequence[Holdings]) -> list[DownRow]:
    """Return rows for what ``down --everything`` is about to remove, and for files that exist nowhere else."""
    rows = []
    for host in held:
        if host.error:
            rows.append(DownRow(host.host, FAILED, None, host.error.removeprefix(f"{host.host}: ")))
        ours = f"{counted(host.runs, 'run')} on record, helpers, environments"
        rows += [DownRow(host.host, WILL_GO, size, f"{path}: {ours}") for path, size in host.states]
        rows += [
            DownRow(host.host, WILL_GO, folder.bytes, f"{folder.path}: {_describe_contents(folder)}")
            for folder in host.workdirs
        ]
        rows += _rows_of_pushed(host)
    return rows


def _describe_contents(folder: WorkdirHeld) -> str:
    """Describe a workdir, with the files that would be lost as they exist nowhere else (``folder.own``)."""
    if not folder.own:
        return "a project's code"
    more = f" and {folder.own - len(folder.largest)} more" if folder.own > len(folder.largest) else ""
    files = f"{counted(folder.own, 'file')} ({human_size(folder.own_bytes)})"
    return f"with {files} that no sync has put there: {', '.join(folder.largest)}{more}"


def rows_of_everything(removals: Sequence[EverythingRemoved], held: Sequence[Holdings], again: str) -> list[DownRow]:
    """Return rows for what ``down --everything`` removed and what stays; ``again`` is the command that was typed."""
    shown = {host.host: host for host in held}
    rows = []
    for host in removals:
        if host.error:
            error = host.error.removeprefix(f"{host.host}: ")
            rows.append(DownRow(host.host, FAILED, None, f"{error}; `{again}` again goes on"))
            continue
        folders = ", ".join(host.removed) or "nothing was there"
        end = "" if host.left or shown[host.host].pushed else "; nothing of clusterddp is left"
        rows.append(DownRow(host.host, REMOVED, host.bytes, f"{folders}{end}"))
        rows += [DownRow(host.host, STAYS, None, f"{path}: {why}") for path, why in host.left]
        rows += _rows_of_pushed(shown[host.host])
    return rows
