"""``clusterddp run``: sync the code, start the script on every node, show its lines, say how it ended."""

from __future__ import annotations

import contextlib
import shlex
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from clusterddp.cli import option_checks
from clusterddp.cli.attach import attach, stop_launched, treat_signals_as_ctrl_c
from clusterddp.cli.misplaced_options import notice_own_options, refuse_misplaced, refuse_unread
from clusterddp.cli.notify import Notifier, webhook
from clusterddp.cli.output import say
from clusterddp.cli.progress import Progress
from clusterddp.cli.prompt import prompt_function
from clusterddp.cli.run_lines import Display
from clusterddp.cli.session import open_cluster
from clusterddp.cli.timeline import record_timeline
from clusterddp.errors import UsageError
from clusterddp.launch.options import DECLARED, RunOptions
from clusterddp.project.project import short_path
from clusterddp.remote.shared.text.counted import counted
from clusterddp.text.printable import one_line

if TYPE_CHECKING:
    from collections.abc import Mapping

    from clusterddp.api.cluster import Cluster


@dataclass(frozen=True, kw_only=True, slots=True)
class TerminalOptions:
    """The options of `run` that are no RunOptions: how the run is shown, and what this command does instead."""

    join: str | None
    env_file: Path | None
    detach: bool
    show: tuple[int, ...] | None
    show_agents: bool
    show_all: bool
    fold: bool | None
    silence: float
    result: str | None
    timeline: str | None
    notify: str | None
    bundle: bool
    dry_run: bool

    @property
    def display(self) -> Display:
        """Which lines are shown, and how."""
        return Display(
            ranks=self.show, agents=self.show_agents, whole=self.show_all, fold=self.fold, silence=self.silence
        )


def act(inventory: Path | None, limit: str | None, **given: Any) -> int:
    """Start the run and follow it, or do what another option asks for; return the exit code."""
    terminal = TerminalOptions(**{name: value for name, value in given.items() if name not in DECLARED})
    run_values = {name: value for name, value in given.items() if name in DECLARED and value is not None}
    if (terminal.detach or run_values.get("array")) and not _is_typed("on_disconnect"):
        run_values["on_disconnect"] = "keep"  # a variable's or pyproject.toml's is for the runs that a terminal follows
    again = run_values.get("again")
    if terminal.join:
        _refuse_beside("--join", {"inventory", "limit", "skip"}, "a run is joined as it is")
    else:
        _refuse_contradictions(run_values, terminal)
    options = None if terminal.join or again else make_run_options(run_values, terminal, limit)
    with open_cluster(inventory, limit, starts=True) as cluster:
        if terminal.join:
            return _join(cluster, terminal.join, run_values.get("skip", ()))
        if options is None:
            options = cluster.options_again(str(again), prompt_function())
            if terminal.detach:
                options = replace(options, on_disconnect="keep")  # the run before had a terminal to lose
            _refuse_unfollowed(terminal, on_disconnect=options.on_disconnect, array=options.array)
        else:
            _check_arguments(cluster, options)
        _warn_of_failed_up(cluster)
        if terminal.dry_run:
            text = cluster.render(options)
            if sys.stdout.isatty():  # hosts say parts of it
                text = "\n".join(map(one_line, text.split("\n")))
            click.echo(text, nl=False)
            return 0
        return _start(cluster, options, terminal)


def _start(cluster: Cluster, options: RunOptions, terminal: TerminalOptions) -> int:
    """Start the run, and follow it unless it is detached; return the exit code."""
    cluster.detached = terminal.detach
    cluster.webhook = webhook(terminal.notify or "", terminal.silence)
    treat_signals_as_ctrl_c()
    try:
        timeline = Path(terminal.timeline) if terminal.timeline else None
        with record_timeline(timeline, cluster) as recorder, Progress() as progress:
            cluster.progress = recorder.recording_steps(progress.show) if recorder else progress.show
            run = cluster.start(options)
            if recorder:
                recorder.step("following")
            if not terminal.detach and not options.array:
                result = Path(terminal.result) if terminal.result else None
                target = "" if run.notified else terminal.notify or ""
                with contextlib.closing(Notifier(target, run.id, run.record)) as notifier:
                    return attach(
                        cluster,
                        run,
                        progress,
                        terminal.display,
                        grace=options.grace,
                        result=result,
                        notifier=notifier,
                        bundle=terminal.bundle,
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


def _refuse_contradictions(run_values: Mapping[str, Any], terminal: TerminalOptions) -> None:
    """Refuse a missing script, and options that contradict each other; ``run_values``: the fields of RunOptions."""
    if run_values.get("again"):
        shown = {name for name in click.get_current_context().params if name not in {*DECLARED, "env_file"}}
        _refuse_beside("--again", {*shown, "again", "limit"}, "a run is repeated as it was")
        return
    if "script" not in run_values:
        raise click.MissingParameter(param_type="argument", param_hint="'SCRIPT'")
    _refuse_unfollowed(terminal, on_disconnect=run_values.get("on_disconnect"), array=run_values.get("array"))


def _refuse_unfollowed(terminal: TerminalOptions, *, on_disconnect: str | None, array: object) -> None:
    """Refuse what needs a terminal that follows the run, with ``--detach`` or an array."""
    word = "--detach" if terminal.detach else "--array" if array else ""
    if terminal.detach and on_disconnect == "stop":
        raise UsageError(
            "--detach with --on-disconnect stop: a detached run has no terminal to lose", remedy="leave one out"
        )
    if word and terminal.bundle:
        raise UsageError(f"--bundle with {word}: nothing here sees it fail", remedy="leave one out")
    if word and terminal.result:
        raise UsageError(f"--result with {word}: nothing here sees it end", remedy="leave one out")
    # CLUSTERDDP_NOTIFY is for the runs followed
    if word and _is_typed("notify") and not option_checks.is_url(terminal.notify or ""):
        raise UsageError(
            f"--notify with {word}: a command here is told while this follows the run", remedy="give a URL"
        )


def _refuse_beside(option: str, allowed: set[str], why: str) -> None:
    """Refuse what is typed beside ``option`` and is not ``allowed``, instead of ignoring it."""
    allowed = {*allowed, option.removeprefix("--")}
    wrong = [name for name in click.get_current_context().params if name not in allowed and _is_typed(name)]
    if wrong:
        word = wrong[0].upper() if wrong[0] in {"script", "args"} else f"--{wrong[0].replace('_', '-')}"
        raise UsageError(f"{word} beside {option}: {why}", remedy="leave out one of the two")


def _is_typed(name: str) -> bool:
    """Whether an option stands on this command line."""
    source = click.get_current_context().get_parameter_source(name)
    return source is click.core.ParameterSource.COMMANDLINE


def make_run_options(run_values: Mapping[str, Any], terminal: TerminalOptions, limit: str | None) -> RunOptions:
    """Return the run's options as a value; raises UsageError if one is invalid."""
    env = option_checks.read_environment(run_values["env"], terminal.env_file)
    return RunOptions(**{**run_values, "env": env, "limit": limit})


def _check_arguments(cluster: Cluster, options: RunOptions) -> None:
    """Refuse or point out arguments of the script that look like options of ours."""
    refuse_misplaced(options.script, options.args, cluster.inventory)
    if not options.no_sync:
        refuse_unread(options.script, options.args, cluster.project, module=options.module)
    notice_own_options(options.args)


def _warn_of_failed_up(cluster: Cluster) -> None:
    """Say that this machine alone takes part, if an `up` of hosts began and did not succeed."""
    tried = cluster.project.attempted_inventory
    if cluster.inventory.path or tried is None or not tried.exists():
        return
    say("this machine only!")
    file = shlex.quote(short_path(tried))
    say(f"`up` has not made the hosts of {file} ready: `clusterddp up {file}`, or `clusterddp run -i {file} SCRIPT`")


def _join(cluster: Cluster, reference: str, skip: tuple[str, ...]) -> int:
    run = cluster.find(reference)
    for name in cluster.join(run, skip=skip):
        say(f"{name} joins run {run.id}; `clusterddp logs --follow {run.id}` shows its lines")
    return 0
