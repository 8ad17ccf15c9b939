"""Repeat a run unchanged (``run --again RUN``): its options from its record, its code from the project's store.

Neither holds values of secrets, so these are asked for again. The run is refused if anything is missing or differs in a
way that the job would notice; a new driver or GPU is only reported.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING

from clusterddp.errors import ClusterddpError, RunError, SyncError, UsageError
from clusterddp.inventory.launchers import DEFAULT_LAUNCHER, chooses_hosts
from clusterddp.launch.options import RunOptions
from clusterddp.project import project_folder
from clusterddp.remote.shared.workdir.manifest import encode
from clusterddp.runs.difference import CODE_DIGITS, differences
from clusterddp.sync import code_store
from clusterddp.sync.project_files.project_tree import Tree, scan

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from clusterddp.inventory import Inventory
    from clusterddp.project.project import Project
    from clusterddp.remote.shared.run.run_record import RunRecord

_JOB_SUBJECTS = frozenset({"environment", "ranks", "version", "variable", "hosts"})  # differences a job would notice
_HOST_DIFFERENCES = frozenset({("version", "driver"), ("GPUs", "")})
_OUR_VERSION = ("version", "clusterddp")


@dataclass(frozen=True, kw_only=True, slots=True)
class Repeat:
    """The record and the code of the run to repeat."""

    record: RunRecord
    tree: Tree

    def check(self, new: RunRecord) -> list[str]:
        """Refuse (RunError) what the job would notice; return a message for each driver or GPU that has changed."""
        diffs = differences(self.record, new)
        host_changes = [diff for diff in diffs if (diff.subject, diff.name) in _HOST_DIFFERENCES]
        notable = [diff for diff in diffs if diff.subject in _JOB_SUBJECTS and diff not in host_changes]
        refused = [diff for diff in notable if (diff.subject, diff.name) != _OUR_VERSION]
        if refused:
            why = "; ".join(f"{diff.what} was {diff.a or 'none'}, is {diff.b or 'none'}" for diff in refused)
            raise _refusal(self.record, why, "bring that back, or start the script without --again")
        return [
            f"since run {self.record.run}: {diff.what} was {diff.a or 'none'}, is {diff.b or 'none'}"
            for diff in host_changes
        ]


def find_record(project: Project, reference: str) -> RunRecord:
    """Return the record of a run started in this project on this machine; records that hosts report are not trusted.

    ``reference`` is a run's id, a unique prefix of one, or a name (its newest run). Raises ``RunError`` if no run
    matches, or several do.
    """
    by_id = {record.run: record for record in project.runs(own=True)}
    named = [record for record in by_id.values() if record.name == reference]
    with_prefix = [record for record in by_id.values() if record.run.startswith(reference)]
    matching = [by_id[reference]] if reference in by_id else named[-1:] or with_prefix
    if len(matching) > 1:
        runs = ", ".join(record.run for record in matching)
        raise RunError(f"{reference!r} is the beginning of several runs: {runs}", remedy="write more of it")
    if not matching or not reference:
        others = [record for record in project.runs() if reference and reference in {record.run, record.name}]
        if others:
            raise _refusal(others[-1], "nothing proves that you have started it here", "start its script again by hand")
        remedy = "`clusterddp runs` lists the project's; one is repeated where it was started"
        raise RunError(f"no run {reference!r} was started from this folder", remedy=remedy)
    return matching[0]


def options_of(record: RunRecord, ask: Callable[[str], str] | None = None) -> RunOptions:
    """Return the options that a run was started with.

    ``ask`` asks a person for a secret that is not set here; the answer is then put into the environment. Raises
    ``RunError`` if the record is incomplete, or has options that this version does not know; ``UsageError`` if a secret
    is not set here.
    """
    if record.options is None or not record.script:
        raise _refusal(record, "it did not write down how it was started", "start its script again by hand")
    given = {"launcher": record.launcher, **record.options}
    run_name = record.name
    if record.array:  # of its array this run alone
        array_name, index = record.array_and_index
        run_name, given["array"] = None if array_name == record.run else array_name, f"{index}-{index}"
    unknown = given.keys() - {option.name for option in fields(RunOptions)}
    if unknown:
        raise _refusal(record, f"this version knows no option {min(unknown)}", "take the version that started it")
    env = {str(name): value for name, value in dict(given.pop("env", {})).items()}
    hidden, secret = [name for name, value in env.items() if value is None], given.get("secret")
    for name in (*hidden, *(secret if isinstance(secret, (list, tuple)) else ())):
        if ask and name not in os.environ:
            os.environ[name] = ask(f"{name}, as for run {record.run}: ")
    for name in hidden:
        if name not in os.environ:
            raise UsageError(
                f"{name} is not set in this environment, and its value is kept nowhere", remedy=f"export {name} first"
            )
        env[name] = os.environ[name]
    try:
        return RunOptions(
            script=record.script,
            args=record.argv,
            module=record.module,
            name=run_name,
            limit=record.limit,
            env=env,
            again=record.run,
            **given,
        )
    except UsageError as error:
        raise UsageError(f"run {record.run}: {error.message}", remedy=error.remedy) from None


def inventory_of(record: RunRecord, inventory: Inventory) -> Inventory:
    """Return the inventory with only the hosts and spares of the recorded run, in the order they had then."""
    by_name = {host.name: host for host in inventory.hosts}
    missing = [name for name in record.hosts if name not in by_name or by_name[name].role not in {"node", "spare"}]
    if missing:
        hosts = ", ".join(missing)
        raise _refusal(record, f"no node of this inventory is {hosts}", "choose the inventory that has them: -i FILE")
    nodes = [replace(by_name[name], role="node") for name in record.hosts]
    spares = [replace(by_name[name], role="spare") for name in record.spares if name in by_name]
    return replace(inventory, hosts=(*nodes, *spares))


@contextlib.contextmanager
def resolve_repeat(
    inventory: Inventory, project: Project, options: RunOptions
) -> Iterator[tuple[Inventory, Project, Repeat | None]]:
    """Yield the hosts, the project folder and the code to run: of the repeated run, if the options name one."""
    if options.again is None:
        yield inventory, project, None
        return
    record = find_record(project, options.again)
    if not chooses_hosts(record.launcher or DEFAULT_LAUNCHER):  # a launcher that chooses hosts chooses new ones
        inventory = inventory_of(record, inventory)
    with _load_repeat(project, record, options.sync_limit) as repeat:
        yield inventory, replace(project, subfolder=record.subfolder), repeat


@contextlib.contextmanager
def _load_repeat(project: Project, record: RunRecord, limit: int | None) -> Iterator[Repeat]:
    """Yield the run to repeat, with its code on disk: the project's own if unchanged, else a saved copy.

    ``limit`` is ``--sync-limit`` in bytes. Raises RunError if its code is not known, or no longer kept.
    """
    if not record.code:
        raise _refusal(record, "nobody knows its code: no sync had filled its folder", "start its script again by hand")
    tree = _scan_if_possible(project, limit)
    if tree and tree.digest == record.code:
        yield Repeat(record=record, tree=tree)
        return
    entries = code_store.load(project, record.code)
    if entries is None:
        raise _code_missing(record)
    with tempfile.TemporaryDirectory(prefix="again-", dir=project_folder.real_folder(project.folder)) as folder:
        chunks = code_store.lay_out(project, entries, Path(folder))
        if chunks is None:
            raise _code_missing(record)
        tree = Tree(
            root=Path(folder),
            entries=tuple(entries),
            manifest=encode(entries),
            digest=record.code,
            size=sum(entry.size for entry in entries),
            skipped=(),
            git=None if record.git is None else dict(record.git),
            chunks=chunks,
        )
        yield Repeat(record=record, tree=tree)


def _scan_if_possible(project: Project, limit: int | None) -> Tree | None:
    """Return the project's code now; None if it cannot be synced, since a saved copy may do."""
    try:
        return scan(project, limit)
    except SyncError:
        return None


def _code_missing(record: RunRecord) -> ClusterddpError:
    """Return the error for a run whose code is no longer kept; its remedy names the commit that has it."""
    commit = record.git and not record.git.get("dirty") and record.git.get("commit")
    helps = f"`git checkout {str(commit)[:12]}` has it" if commit else ""
    return _refusal(record, f"its code {record.code[:CODE_DIGITS]} is not kept in this project", helps)


def _refusal(record: RunRecord, why: str, remedy: str) -> ClusterddpError:
    return RunError(f"run {record.run} cannot be repeated: {why}", remedy=remedy)
