"""Keep in the project how its runs ended (``.clusterddp/verdicts/RUN.json``), for when no host can report it."""

from __future__ import annotations

import contextlib
import json
import time
from typing import TYPE_CHECKING, NamedTuple

from clusterddp.errors import UsageError
from clusterddp.project import project_folder
from clusterddp.remote.shared.run.run_record import RunRecord
from clusterddp.remote.shared.schema.fields import Fields
from clusterddp.remote.shared.schema.record import record_in, to_fields
from clusterddp.remote.shared.verdict.judge import VerdictRecord, read_verdict
from clusterddp.remote.shared.wire.frames import parse_json

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from clusterddp.project.project import Project
    from clusterddp.runs.view.run_view import RunView

FOLDER = "verdicts"
RETENTION_DAYS = 30  # for which hosts keep a run (remote/cleanup/retention.py)
_MAX_FILE_BYTES = 4 << 20
MAX_RUNS = 1000  # how many verdicts are kept; the oldest are deleted


class CachedRun(NamedTuple):
    """The record that a run wrote when it started, and its verdict."""

    record: RunRecord
    verdict: VerdictRecord


def record_start(project: Project, record: RunRecord, notify: Callable[[str], None]) -> None:
    """Record a run that has just started; if the project cannot be written, only notify, since the run goes on."""
    try:
        project.record_run(record)
    except UsageError as error:
        notify(f"run {record.run} has started, and the project keeps no record of it: {error}")


def save_verdict(project: Project, view: RunView) -> None:
    """Save the verdict of a run of the project; do nothing while it is live, or if the project cannot be written."""
    verdict = view.to_keep()
    if verdict is None or view.record.project != project.known_id:
        return
    data = {"record": to_fields(view.record), "verdict": to_fields(verdict)}
    with contextlib.suppress(UsageError):
        path = project.write(f"{FOLDER}/{view.run}.json", json.dumps(data, indent=1).encode() + b"\n")
        for old in sorted(path.parent.glob("*.json"), key=_age)[MAX_RUNS:]:
            old.unlink(missing_ok=True)


def save_if_new(project: Project, view: RunView) -> RunView:
    """Save the verdict that the run's hosts report, if it is not saved here yet; return the view unchanged."""
    if view.kept and not finished_runs(project, view.run):
        save_verdict(project, view)
    return view


def has_data(project: Project, run: str) -> bool:
    """Whether the project has data on the run, or with an empty id on any run, to show when no host answers."""
    return bool(finished_runs(project, run) or (not run and recent_starts(project)))


def finished_runs(project: Project, run: str = "") -> dict[str, CachedRun]:
    """Return the saved runs whose ids start with ``run``, by id; damaged files are skipped."""
    runs = {}
    for path in project_folder.real_folder(project.folder, FOLDER).glob(f"{run}*.json"):
        with contextlib.suppress(OSError, ValueError):
            fields = Fields(parse_json(project_folder.read(path, _MAX_FILE_BYTES)), most=1 << 20)
            runs[path.stem] = CachedRun(
                record_in(fields.part("record"), RunRecord), read_verdict(fields.raw("verdict"))
            )
    return runs


def recent_starts(project: Project) -> list[RunRecord]:
    """Return the records of the project's runs that are recent enough for a host to still know them."""
    oldest = time.time_ns() - RETENTION_DAYS * 86400 * 10**9
    return [record for record in project.runs() if (record.started or 0) > oldest]


def replaced_hosts(project: Project, run: str | None) -> frozenset[str]:
    """Return the hosts that spares replaced because they could not be reached at the start of ``run`` (a full id)."""
    if run is None:
        return frozenset()
    return frozenset(name for record in project.runs(own=True) if record.run == run for name in record.replaced)


def _age(path: Path) -> float:
    """Return a sort key by age, newest first; a file that has disappeared sorts last."""
    try:
        return -path.stat().st_mtime
    except OSError:
        return 0.0
