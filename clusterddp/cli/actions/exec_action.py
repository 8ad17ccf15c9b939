"""``clusterddp exec``: run a command on every host at once; show its lines as they come, or equal outputs once."""

from __future__ import annotations

import io
import json
import re
import shlex
import signal
import sys
from typing import TYPE_CHECKING

from clusterddp.cli import interrupts
from clusterddp.cli.output import STATUS_LINE, say, writer
from clusterddp.cli.session import open_cluster
from clusterddp.errors import UsageError
from clusterddp.logs.merge import StreamBroken
from clusterddp.logs.render import BOLD, RESET, JsonOutputRenderer
from clusterddp.logs.renderers import coloured, renderer_for
from clusterddp.shell import Command
from clusterddp.shell.execution import CUT, CommandOutput
from clusterddp.text.clean import clean
from clusterddp.text.folding import few, folded_names

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from pathlib import Path

    from clusterddp.logs.merge import Event
    from clusterddp.logs.render import Renderer
    from clusterddp.shell import Executed, Execution

_SHELL_SYNTAX = re.compile(r"[\s|&;<>$`]")
_INDENT = b"  "  # of the lines of an output below its header


def act(
    inventory: Path | None,
    limit: str | None,
    *,
    gather: bool,
    sync: bool,
    timeout: float | None,
    bare: bool,
    as_json: bool,
    shell: str | None,
    argv: tuple[str, ...],
) -> int:
    """Run the command and show its output; return the exit code."""
    if gather and as_json:
        raise UsageError("--gather with --json: each line of JSON names its host already", remedy="leave one out")
    _refuse_shell_line(argv)
    command = Command(argv=argv, shell=shell, bare=bare, timeout=timeout)
    source = None if sys.stdin.isatty() else io.FileIO(0, closefd=False)
    show = show_gathered if gather else show_json if as_json else show_live
    with open_cluster(inventory, limit, starts=True) as cluster:
        interrupts.treat_as_ctrl_c(signal.SIGTERM)
        with cluster.execution(command, given=source, sync=sync) as execution:
            return show(execution)


def _refuse_shell_line(argv: tuple[str, ...]) -> None:
    """Refuse a shell's command line given as one word, which would be taken for a program's name."""
    if len(argv) != 1 or not _SHELL_SYNTAX.search(argv[0]) or re.fullmatch(r"/[^|&;<>$`]*", argv[0]):
        return
    corrected = shlex.join(["clusterddp", "exec", "--shell", argv[0]])
    raise UsageError(f"{argv[0]!r} is one word, so it would be a program's name", remedy=f"write `{corrected}`")


def show_live(execution: Execution) -> int:
    """Show lines as they come; return the exit code, as the next two do."""
    return _report_ends(execution, _draw_output(execution, renderer_for(sys.stdout.buffer)))


def show_json(execution: Execution) -> int:
    """Show each line as a JSON object, and at the end one for each host; its ``left``: processes that still run."""
    code = _draw_output(execution, JsonOutputRenderer())
    for name in execution.hosts:
        end = execution.results[name]
        fields = {"host": name, "exit_code": end.code, "error": end.error, "cwd": end.cwd, "left": list(end.left)}
        sys.stdout.write(json.dumps(fields) + "\n")
    return _report_ends(execution, code)


def show_gathered(execution: Execution) -> int:
    """Show equal outputs once: the largest group first, then as the inventory has the hosts."""
    output = CommandOutput()
    code = _follow(execution, output.take)
    groups: dict[bytes, list[str]] = {}
    for end in output.of(execution):
        groups.setdefault(end.output, []).append(end.host)
    stream = sys.stdout.buffer
    bold, reset = (BOLD, RESET) if coloured(stream) else (b"", b"")
    STATUS_LINE.erase()
    for raw, hosts in sorted(groups.items(), key=lambda group: -len(group[1])):
        text = clean(raw.removesuffix(b"\n"))
        head = bold + f"{folded_names(hosts)} ({len(hosts)}):".encode() + reset
        if raw:
            stream.write(head + _below_head(text) + (reset if b"\x1b" in text else b"") + b"\n")
    stream.flush()
    if cut := [name for name in execution.hosts if name in output.cut]:
        say(f"{folded_names(cut)}: {CUT}")
    return _report_ends(execution, code)


def _below_head(text: bytes) -> bytes:
    """Return an output below its header: one line beside it, more lines indented, so that none looks like a header."""
    if b"\n" not in text:
        return b" " + text
    return b"\n" + b"\n".join([_INDENT + line if line else line for line in text.split(b"\n")])


def _draw_output(execution: Execution, renderer: Renderer) -> int | None:
    """Show the output as it comes; return the exit code of a Ctrl-C, else None.

    Lost hosts are not shown here: ``_report_ends`` reports them with all others.
    """
    with writer(renderer) as write:
        return _follow(
            execution, lambda events: write([event for event in events if not isinstance(event, StreamBroken)])
        )


def _follow(execution: Execution, take: Callable[[list[Event]], None]) -> int | None:
    """Pass all output to ``take``; Ctrl-C ends the command everywhere. Return the exit code of a Ctrl-C, else None."""
    try:
        for events in execution.events():
            take(events)
    except KeyboardInterrupt as interrupt:
        for events in execution.stop():
            take(events)
        return interrupts.exit_code(interrupt)
    return None


def _report_ends(execution: Execution, interrupted: int | None) -> int:
    """Print errors, processes left and differing exit codes; return the exit code.

    ``interrupted``: the exit code of the Ctrl-C that ended the command; None: it ended by itself.
    """
    sys.stdout.flush()
    ends = [execution.results[name] for name in execution.hosts]
    at_home = [end.host for end in ends if end.home]
    if at_home:
        remedy = "--sync brings the project's code"
        say(f"{folded_names(at_home)}: no workdir there yet, it ran in the home folder; {remedy}")
    errors = [(end.host, end.error.removeprefix(f"{end.host}: ")) for end in ends if end.error]
    for error in dict.fromkeys(error for _, error in errors):
        say(f"{folded_names([host for host, other in errors if other == error])}: {error}")
    for end in ends:
        if end.left:
            say(f"{end.host}: left running: {few(end.left, 5)}")
    if interrupted is not None:
        _say_proof(ends)
        return interrupted
    if len({end.code for end in ends}) > 1:
        say(f"exit codes: {'; '.join(_hosts_by_code(ends))}")
    return max(end.code for end in ends)


def _say_proof(ends: Sequence[Executed]) -> None:
    """Print the hosts on which no process of the command is left."""
    proved = [end.host for end in ends if not end.left and not end.error]
    if proved:
        say(f"ended; nothing of it is left on {folded_names(proved)}")


def _hosts_by_code(ends: Iterable[Executed]) -> list[str]:
    """Return ``CODE on HOSTS`` for each exit code, the highest first."""
    codes: dict[int, list[str]] = {}
    for end in ends:
        codes.setdefault(end.code, []).append(end.host)
    return [f"{code} on {folded_names(hosts)}" for code, hosts in sorted(codes.items(), reverse=True)]
