"""``clusterddp run``: sync the code, start the script on every node, show its lines, say how it ended."""

from __future__ import annotations

import contextlib
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from clusterddp.cli import option_docs
from clusterddp.cli.attach import attach, heed_signals, stop_launched
from clusterddp.cli.misplaced_options import notice_own_options, refuse_misplaced, refuse_unread
from clusterddp.cli.notify import Notifier, webhook
from clusterddp.cli.output import say
from clusterddp.cli.progress import Progress
from clusterddp.cli.prompt import asking
from clusterddp.cli.session import open_cluster
from clusterddp.cli.timeline import recording
from clusterddp.errors import UsageError
from clusterddp.launch.options import DECLARED, RunOptions
from clusterddp.project.project import typed
from clusterddp.remote.shared.text.counted import counted

if TYPE_CHECKING:
    from clusterddp.api.cluster import Cluster

_BESIDE_AGAIN = {
    "again",
    "notify",
    "detach",
    "show",
    "show_agents",
    "show_all",
    "silence",
    "fold",
    "result",
    "dry_run",
    "timeline",
}


def act(inventory: Path | None, limit: str | None, **given: Any) -> int:
    """Start the run and follow it, or do what another option asks for; return the exit code."""
    if given["join"]:
        with open_cluster(inventory, limit, starts=True) as cluster:
            return _join(cluster, given["join"], given["skip"] or ())
    if given["script"] is None and not given["again"]:
        raise click.MissingParameter(param_type="argument", param_hint="'SCRIPT'")
    _refuse_beside_again(given)
    options = None if given["again"] else chosen_options(given, limit)
    result = Path(given["result"]) if given["result"] else None
    with open_cluster(inventory, limit, starts=True) as cluster:
        if options is None:
            options = cluster.options_again(given["again"], asking())
        else:
            refuse_misplaced(given["script"], given["args"], cluster.inventory)
            if not given["no_sync"]:
                refuse_unread(given["script"], given["args"], cluster.project, module=given["module"])
            notice_own_options(given["args"])
        _say_if_hosts_are_left_out(cluster)
        if given["dry_run"]:
            click.echo(cluster.render(options), nl=False)
            return 0
        cluster.detached = given["detach"]
        cluster.webhook = webhook(given["notify"] or "", given["silence"])
        heed_signals()
        try:
            timeline = Path(given["timeline"]) if given["timeline"] else None
            with recording(timeline, cluster) as recorder, Progress() as progress:
                cluster.progress = recorder.told(progress.show) if recorder else progress.show
                run = cluster.start(options)
                if recorder:
                    recorder.step("following")
                if not given["detach"] and not options.array:
                    shown = {"shown": given["show"], "agents": given["show_agents"], "whole": given["show_all"]}
                    shown |= {"fold": given["fold"], "silence": given["silence"]}
                    target = "" if run.notified else given["notify"] or ""
                    with contextlib.closing(Notifier(target, run.id, run.record)) as notifier:
                        return attach(
                            cluster, run, progress, **shown, grace=options.grace, result=result, notifier=notifier
                        )
        except KeyboardInterrupt as interrupt:
            if cluster.launched is None:
                raise
            return stop_launched(cluster, cluster.launched, options.grace, interrupt)
        if cluster.webhook and not run.notified:
            say("--notify: nothing follows a detached run, and its hosts cannot tell: nobody is told")
        click.echo("\n".join(run.submitted or [run.id]))
        if options.array:
            how_many = counted(len(run.submitted), "run")
            say(f"{how_many}; `clusterddp logs --follow {run.record.name}` shows the first of them")
        return 0


def _refuse_beside_again(given: dict[str, Any]) -> None:
    """Refuse options beside ``--again`` that would change the run; only how it is shown may be chosen."""
    if not given["again"]:
        return
    context = click.get_current_context()
    said = [name for name in given if context.get_parameter_source(name) is click.core.ParameterSource.COMMANDLINE]
    wrong = [name for name in said if name not in _BESIDE_AGAIN]
    if wrong:
        word = wrong[0].upper() if wrong[0] in {"script", "args"} else f"--{wrong[0].replace('_', '-')}"
        raise UsageError(f"{word} beside --again: a run is repeated as it was", remedy="leave out one of the two")


def _say_if_hosts_are_left_out(cluster: Cluster) -> None:
    """Say that this machine alone takes part, if an `up` of hosts began and did not succeed."""
    tried = cluster.project.tried
    if cluster.inventory.path or tried is None or not tried.exists():
        return
    say("this machine only!")
    file = shlex.quote(typed(tried))
    say(f"`up` has not made the hosts of {file} ready: `clusterddp up {file}`, or `clusterddp run -i {file} SCRIPT`")


def chosen_options(given: dict[str, Any], limit: str | None) -> RunOptions:
    """Return the command's options as a value; raises UsageError."""
    if given["detach"] and given["on_disconnect"] == "stop":
        raise UsageError("--detach with --on-disconnect stop: a detached run has no terminal to lose")
    said = click.get_current_context().get_parameter_source("notify")  # CLUSTERDDP_NOTIFY is for the runs followed
    if given["detach"] and said is click.core.ParameterSource.COMMANDLINE and not option_docs.is_url(given["notify"]):
        raise UsageError(
            "--notify with --detach: a command here is told while this follows the run", remedy="give a URL"
        )
    own = {name: given[name] for name in DECLARED if name in given}
    own["env"] = option_docs.environment(given["env"], given["env_file"])
    return RunOptions(**{**own, "skip": own["skip"] or (), "limit": limit})


def _join(cluster: Cluster, reference: str, skip: tuple[str, ...]) -> int:
    run = cluster.find(reference)
    for name in cluster.join(run, skip=skip):
        say(f"{name} joins run {run.id}; `clusterddp logs --follow {run.id}` shows its lines")
    return 0
