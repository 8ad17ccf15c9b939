"""Print how a run ended, for each command that waits for the end of one, and return its exit code."""

from __future__ import annotations

from typing import TYPE_CHECKING

from clusterddp.cli.output import say
from clusterddp.remote.shared.processes.exit_codes import EXIT_NOT_THE_SCRIPT
from clusterddp.remote.shared.run.run_state import RunState
from clusterddp.runs.failure_lines import failure_output
from clusterddp.runs.run_folders import describe_workdirs
from clusterddp.runs.view.preload_hint import is_new
from clusterddp.runs.wrong_results import find_wrong_result

if TYPE_CHECKING:
    from clusterddp.runs.run_on_hosts import RunOnHosts
    from clusterddp.runs.view.verdict_lines import Verdict


def print_own_end(run: RunOnHosts, verdict: Verdict | None, took: str = "") -> int:
    """Print how the run of this command ended and where its files are, a failure's verdict last.

    ``verdict``: None if the run goes on. ``took``: the end of a successful run's line, such as " in 5.0 s".
    """
    if verdict is None:
        return _print_unknown()
    folder = describe_workdirs(run.record)
    failed = verdict.state != RunState.SUCCEEDED
    if failed and folder:
        say(f"the files of run {run.id} are in {folder}")
    _print_reasons(run, verdict)
    if verdict.slow_imports and is_new(run.cluster.project, verdict.slow_imports):
        say(verdict.slow_imports.line)
    where = f"; its files are in {folder}" if folder else ""
    comma = "" if verdict.line == RunState.SUCCEEDED or not took else ","
    say(verdict.line if failed else f"run {run.id} {verdict.line}{comma}{took}{where}")
    return verdict.exit_code


def print_followed_end(run: RunOnHosts, verdict: Verdict | None) -> int:
    """Print how a run ended whose lines this command has followed; None: it goes on."""
    if verdict is None:
        return _print_unknown()
    _print_reasons(run, verdict)
    return _print_named(run, verdict)


def print_awaited_end(run: RunOnHosts, verdict: Verdict) -> int:
    """Print how one of several runs ended: each line names the run, and its workers' lines are left out."""
    for line in verdict.preface:
        say(f"run {run.id}: {line}")
    return _print_named(run, verdict)


def _print_unknown() -> int:
    say("the run goes on, but its hosts cannot be followed")
    return EXIT_NOT_THE_SCRIPT


def _print_named(run: RunOnHosts, verdict: Verdict) -> int:
    say(f"run {run.id}: {verdict.line}")
    return verdict.exit_code


def _print_reasons(run: RunOnHosts, verdict: Verdict) -> None:
    """Print what comes before a verdict: notices, the last lines of the first failure, the remedy."""
    for line in verdict.notices:
        say(line)
    wrong = find_wrong_result(run, verdict.silent) if verdict.state == RunState.SUCCEEDED else None
    if wrong:
        say(wrong.sentence)
        say(f"remedy: {wrong.remedy}")
    for failure in verdict.failures[:1]:
        for line in failure_output(run, failure):
            say(line)
    if verdict.remedy:
        say(f"remedy: {verdict.remedy}")
