"""Follow a run on this terminal until it ends: its lines, Ctrl-C, SIGQUIT, the verdict.

If the terminal is lost (SIGHUP, kill -9), only this process ends: the run goes on.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from typing import TYPE_CHECKING, NoReturn

from clusterddp.cli import interrupts
from clusterddp.cli.arrays import find_referenced_runs
from clusterddp.cli.bundle_lines import write_after_failure
from clusterddp.cli.output import (
    STDOUT,
    discard,
    report_proofs,
    report_unasked,
    say,
    say_event,
    say_last,
    write_file,
    writer,
)
from clusterddp.cli.run_end import print_own_end
from clusterddp.cli.run_lines import fold_if_many_ranks, selection_for
from clusterddp.errors import ClusterddpError, RunError
from clusterddp.logs.renderers import renderer_for
from clusterddp.remote.shared.run.run_state import end_event
from clusterddp.remote.shared.text.counted import counted
from clusterddp.runs.background import join_late_hosts, lease_renewal
from clusterddp.runs.ending import SILENCE_LIMIT
from clusterddp.runs.follow import Follower
from clusterddp.runs.run import interrupt_reason
from clusterddp.runs.watch import RunWatch

if TYPE_CHECKING:
    from pathlib import Path

    from clusterddp.api.cluster import Cluster
    from clusterddp.cli.notify import Notifier
    from clusterddp.cli.progress import Progress
    from clusterddp.cli.run_lines import Display
    from clusterddp.logs.render import Renderer
    from clusterddp.runs.proof import Proof
    from clusterddp.runs.run import Run
    from clusterddp.runs.run_on_hosts import RunOnHosts
    from clusterddp.runs.view.verdict_lines import Verdict


PATIENCE = 1.0  # seconds without a byte taken after which the reader of the rest counts as paused


class DetachedError(BaseException):
    """SIGQUIT: the user detaches from the run, which goes on."""


def treat_signals_as_ctrl_c() -> None:
    """Make SIGTERM act as Ctrl-C, with its own exit code; and SIGQUIT too, until there is a run to detach from."""
    interrupts.treat_as_ctrl_c(signal.SIGQUIT, signal.SIGTERM)


def attach(
    cluster: Cluster,
    run: Run,
    progress: Progress,  # the status line, shown until the first output
    display: Display,
    *,
    grace: float,  # seconds between SIGTERM and SIGKILL when Ctrl-C stops it
    result: Path | None,  # the file for the final status
    notifier: Notifier,  # reports the run's events for ``--notify``
    bundle: bool,  # whether a bundle is written if it fails
) -> int:
    """Follow the run to its end; return its exit code (docs/run.md)."""
    started = time.monotonic()
    lines = _RunLines(progress, display, notifier)
    try:
        signal.signal(signal.SIGQUIT, _raise_detached)
        run = run.begun(progress.show)
        notifier.record = run.record
        _announce_run(cluster, run, display.ranks)
        progress.watch(run)
        with lease_renewal(run), join_late_hosts(run, cluster.join, say):
            verdict = lines.follow(run)
        seconds = time.monotonic() - started
        if bundle and verdict:
            write_after_failure(run, verdict)
        if verdict:
            notifier.tell(end_event(verdict.state), verdict.line)
        code = print_own_end(lines.latest(run), verdict, f" in {seconds:.1f} s")
    except DetachedError:
        progress.end()
        say(f"detached; `clusterddp logs --follow {run.id}` shows it again, `clusterddp stop {run.id}` ends it")
        if run.record.on_disconnect == "stop":
            say("nobody renews its lease (--on-disconnect stop): it ends within a minute")
        return 0
    except OSError as error:  # of stdout: hosts' errors are ClusterddpErrors
        progress.end()
        say_last(f"{_why_unwritable(error)}; run {run.id} goes on, `clusterddp logs --follow {run.id}` shows it")
        raise
    except KeyboardInterrupt as interrupt:
        progress.end()
        code = _stop_run(run, grace, interrupt, lines)
    except Exception as error:
        progress.end()
        if not isinstance(error, ClusterddpError):  # a bug of ours is no fault of the run
            say(f"run {run.id} goes on; `clusterddp logs --follow {run.id}` shows it")
        raise
    finally:
        signal.signal(signal.SIGQUIT, signal.SIG_IGN)  # there is nothing left to detach from
    if result:
        _write_result(result, run)
    return code


def _why_unwritable(error: OSError) -> str:
    """Return the message for an error of writing to stdout."""
    has_reader_left = isinstance(error, BrokenPipeError)
    return "the reader of the output is gone" if has_reader_left else f"the output cannot be written ({error.strerror})"


def _write_result(result: Path, run: Run) -> None:
    """Write the final status; if that fails, the exit code remains the run's own."""
    try:
        write_file(result, json.dumps(run.status(SILENCE_LIMIT), indent=1) + "\n")
    except (OSError, ClusterddpError) as error:
        why = error.message if isinstance(error, ClusterddpError) else error.strerror
        say(f"--result {result}: cannot be written ({why}); `clusterddp status {run.id} --json` tells it")


def _announce_run(cluster: Cluster, run: Run, shown: tuple[int, ...] | None) -> None:
    """Print how many ranks and hosts the run has; warn if all ranks of ``--show`` (``shown``) are beyond them."""
    world = run.record.world_size or 0
    where = counted(len(run.spools), "host")
    inventory_hosts = {entry.name for entry in cluster.inventory.hosts}
    where = where if cluster.inventory.path or not inventory_hosts.issuperset(run.spools) else "this machine only"
    if run.spools:
        say(f"run {run.id}: {counted(world, 'rank')} on {where}; Ctrl-C stops it, Ctrl-\\ detaches")
    if shown and min(shown) >= world:
        say(f"--show {shown[0]}: there is no such rank, so nothing is shown")


class _RunLines:
    """Shows a run's lines on this terminal, and tells ``notifier`` its events."""

    def __init__(self, progress: Progress, display: Display, notifier: Notifier) -> None:
        self.progress, self.display, self.notifier = progress, display, notifier
        self._renderer: Renderer | None = None
        self._follower: Follower | None = None

    def follow(self, run: Run) -> Verdict | None:
        """Show the run's lines until it ends, and return its verdict; None if the run goes on."""
        display = self.display
        renderer = self._renderer = renderer_for(sys.stdout.buffer, whole=display.whole)
        fold_if_many_ranks(renderer, run, display.ranks, display.fold)
        with (
            writer(renderer, self.progress.end, self._note_drawn) as write,
            RunWatch(run, self._report_event, silence=display.silence) as watch,
        ):
            selection = selection_for(renderer, display)
            follower = self._follower = Follower(run, selection, self._report_event, renderer.wait, watch)
            verdict = follower.follow(write)
            self.notifier.record = follower.run.record
            return verdict

    def latest(self, run: Run) -> RunOnHosts:
        """Return the run in the attempt that was followed last, with the hosts that have joined it."""
        return self._follower.run if self._follower else run

    def show_rest(self, run: Run, proofs: list[Proof]) -> None:
        """Show what was printed while the run was stopped, on hosts that answered, until Ctrl-C or a paused reader."""
        answered = {proof.host for proof in proofs if not proof.error}
        if not self._renderer or not self._follower:
            return
        try:
            with writer(self._renderer, patience=PATIENCE) as write:
                for events in self._follower.rest(answered):
                    write(events)
        except (KeyboardInterrupt, TimeoutError):
            say_last(f"not all lines were shown; `clusterddp logs {run.id}` shows them")
        except OSError:  # Ctrl-C has ended the output's reader too
            discard(STDOUT)

    def _note_drawn(self) -> None:
        """Note that the rest begins after what was drawn; ``show_rest`` first writes what is left of that."""
        if self._follower:
            self._follower.note_shown()

    def _report_event(self, event: str, line: str) -> None:
        say_event(event, line)
        if self._follower:
            self.notifier.record = self._follower.run.record
        if event != "missing":  # lines that could not be fetched concern this terminal alone
            self.notifier.tell(event, line)


def stop_launched(cluster: Cluster, run: RunOnHosts, grace: float, interrupt: KeyboardInterrupt) -> int:
    """Stop a run, or all of an array, interrupted between its first host's start and ``attach``; report the proofs."""
    array = run.record.array
    try:
        started = find_referenced_runs(cluster, array, reading=True) if array else [cluster.attach(run.view())]
    except RunError:
        say(f"run {run.id} had not started on any host")
        return interrupts.exit_code(interrupt)
    return max([_stop_run(one, grace, interrupt) for one in started])


def _stop_run(run: Run, grace: float, interrupt: KeyboardInterrupt, lines: _RunLines | None = None) -> int:
    """Stop the run everywhere after Ctrl-C, report the proof and how it ended; a second Ctrl-C exits at once.

    ``lines`` are those shown until then; None: nothing was shown.
    """
    code = interrupts.exit_code(interrupt)
    treat_signals_as_ctrl_c()  # also SIGQUIT: from a run that is being stopped nobody detaches
    try:
        say_last(f"stopping run {run.id}; Ctrl-C again leaves the rest to `clusterddp stop {run.id}`")
        proofs = run.stop(grace=grace, reason=interrupt_reason(interrupt))
        report_proofs(run.id, proofs)
        report_unasked(run, proofs)
        verdict = run.stopped(proofs)
    except KeyboardInterrupt:
        say(f"left in the middle of the stop; `clusterddp stop {run.id}` finishes it")
        os._exit(code)  # threads still wait for hosts
    if lines:
        lines.show_rest(run, proofs)
    if lines and verdict:
        lines.notifier.tell(end_event(verdict.state), verdict.line)
    return print_own_end(lines.latest(run) if lines else run, verdict) if verdict else code


def _raise_detached(*_: object) -> NoReturn:
    """Signal handler of SIGQUIT; a second one has no effect."""
    signal.signal(signal.SIGQUIT, signal.SIG_IGN)
    raise DetachedError
