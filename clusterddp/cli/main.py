"""The command line's entry: the table of commands, and the place where errors become a message and an exit code."""

from __future__ import annotations

import contextlib
import copy
import importlib
import os
import re
import sys
import threading
import traceback
from typing import TYPE_CHECKING, Any, NoReturn

import click

from clusterddp import __version__
from clusterddp.cli import command_lines, interrupts, prompt, verbose
from clusterddp.cli.output import STDOUT, can_write_now, discard, replace_unencodable, say_last, writing_last
from clusterddp.errors import (
    EXIT_FAILED,
    EXIT_USAGE,
    ClusterddpError,
    HostError,
    ScriptError,
    UsageError,
    single_errors,
)
from clusterddp.remote.shared.processes.exit_codes import EXIT_INTERRUPTED, EXIT_NOT_THE_SCRIPT
from clusterddp.text.folding import folded_names
from clusterddp.text.nearest import nearest

if TYPE_CHECKING:
    from collections.abc import Iterator

COMMANDS = {  # name → what the list of commands says of it, at most 45 letters: more would be cut there
    "up": "Reach every host, check it, remember them.",
    "run": "Run a script by torchrun on every node.",
    "logs": "Show the lines of a run.",
    "status": "Show a run, host by host.",
    "runs": "List runs, the newest last.",
    "stop": "End runs on every host, and prove it.",
    "signal": "Send a signal to every worker of a run.",
    "why": "Say which rank holds a run up, and where.",
    "top": "Watch hosts and ranks: use, lateness.",
    "bundle": "Write all that a run tells into one file.",
    "debug": "Attach pdb to a rank at a breakpoint().",
    "wait": "Wait for runs to end.",
    "down": "End all runs here, remove their old files.",
    "sync": "Bring the project's code to every host.",
    "push": "Bring files to every host.",
    "pull": "Bring files of the hosts here.",
    "exec": "Run a command on every host.",
    "shell": "Open a shell on a host.",
    "forward": "Bring ports of hosts to this machine.",
    "init": "Write an inventory from what is there.",
    "skill": "Print what a coding agent has to know.",
    "doctor": "Check that a job would run; how to mend it.",
    "hosts": "List the hosts of the inventory.",
    "discover": "Find rank 0 by UDP multicast.",
}
ALIASES = {"ps": "runs", "ls": "runs", "kill": "stop"}
# The name of a command that people know from other tools → what to type instead.
COMMANDS_OF_OTHER_TOOLS = {
    "ssh": "`clusterddp shell HOST` opens a shell on a host",
    **dict.fromkeys(
        ("cp", "scp", "rsync"),
        "`clusterddp push FILE DEST` brings files to every host, `clusterddp pull FILE` brings them here",
    ),
    "list": "`clusterddp runs` lists runs, `clusterddp hosts` lists hosts",
    "cancel": "`clusterddp stop RUN` ends a run",
    "attach": "`clusterddp logs -f` follows a run",
    "launch": "`clusterddp run SCRIPT` starts a script on every host",
}
# torchrun's options that the plan sets itself; see clusterddp.launch.options.option_values.OWNED.
_TORCHRUN_OPTIONS = (
    "--rdzv",
    "--master",
    "--node-rank",
    "--standalone",
    "--local-addr",
    "--log-dir",
    "--redirects",
    "--tee",
)
_MIN_PREFIX = 3  # letters of a command's beginning from which on the whole command is suggested
EXIT_NO_READER = 141  # 128 + SIGPIPE
INTERRUPTED_MESSAGE = "interrupted"


class Commands(click.Group):
    """Click's group of all commands; each is imported from its own module only when it is used or listed.

    What a command does is imported when it is called: --help and completion need its options alone.
    """

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - click's signature
        """Return the commands in the order of the table."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002
        """Return the ``command`` of the command's module, or None."""
        if cmd_name not in COMMANDS:
            return None
        command: click.Command = copy.copy(importlib.import_module(f"clusterddp.cli.commands.{cmd_name}").command)
        command.callback = lambda **given: _act(cmd_name, **given)
        if not any("--verbose" in parameter.opts for parameter in command.params):
            command.params = [*command.params, verbose.option()]
        command.params = [*command.params, _folder_option()]
        command.short_help = COMMANDS[cmd_name]
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Resolve a name or an alias; `help NAME` is `NAME --help`."""
        name, *rest = args
        if name == "help":
            if not rest:
                click.echo(ctx.get_help())
                ctx.exit()
            name, rest = rest[0], ["--help"]
        name = ALIASES.get(name, name)
        if name not in COMMANDS and not name.startswith("-"):
            ctx.fail(f"No such command {name!r}{_command_suggestion(name)}")
        return super().resolve_command(ctx, [name, *rest])

    def make_context(self, *args: Any, **given: Any) -> click.Context:
        """Read the words before the command; --help and --version print here."""
        with _ending_without_reader():
            return super().make_context(*args, **given)

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command; handle Ctrl-C and a closed stdout before click does."""
        try:
            with _ending_without_reader():
                return super().invoke(ctx)
        except KeyboardInterrupt as interrupt:
            line = interrupt.line if isinstance(interrupt, interrupts.WatchEndedError) else INTERRUPTED_MESSAGE
            _exit_at_once(interrupts.exit_code(interrupt), line)


@contextlib.contextmanager
def _ending_without_reader() -> Iterator[None]:
    """End the command with its own code if the reader of stdout is gone, as in `clusterddp logs | head`."""
    try:
        yield
    except BrokenPipeError:
        discard(STDOUT)
        raise click.exceptions.Exit(EXIT_NO_READER) from None


def _act(name: str, /, **given: Any) -> Any:
    """Do what a command does, with its options; return the exit code."""
    return importlib.import_module(f"clusterddp.cli.actions.{name}_action").act(**given)


def _command_suggestion(name: str) -> str:
    """Return a suggestion for a word that is not a command; empty if nothing is close."""
    if name in COMMANDS_OF_OTHER_TOOLS:
        return f"; {COMMANDS_OF_OTHER_TOOLS[name]}"
    matches = [command for command in COMMANDS if command.startswith(name)]
    suggestion = matches[0] if len(matches) == 1 and len(name) >= _MIN_PREFIX else nearest(name, (*COMMANDS, *ALIASES))
    return f"; did you mean {suggestion}?" if suggestion else ""


def _change_folder(_context: click.Context, _parameter: click.Parameter, value: str | None) -> str | None:
    """Callback of ``-C``: change the working directory before any other option is read."""
    if value is not None:
        try:
            os.chdir(value)
        except OSError as error:
            raise UsageError(f"-C {value}: {error.strerror}", remedy="name the project's folder") from None
        command_lines.remember_folder(value)
    return value


def _folder_option() -> click.Option:
    """Return the option ``-C``, which every command has, as in git and make."""
    return click.Option(
        ["-C"],
        metavar="DIR",
        is_eager=True,
        expose_value=False,
        callback=_change_folder,
        help="Do as if given in this folder.",
    )


@click.group(
    cls=Commands,
    short_help="Train with PyTorch on several machines.",
    context_settings={"help_option_names": ["-h", "--help"]},
)
@click.version_option(__version__, prog_name="clusterddp")
@click.pass_context
def cli(context: click.Context) -> None:
    """Train with PyTorch on several GPU machines from one terminal, over plain SSH."""
    from clusterddp.cli.pyproject import Defaults  # noqa: PLC0415 - --version and --help read no options

    context.default_map = {name: Defaults(name) for name in COMMANDS}


cli.params.append(_folder_option())


def main(argv: list[str] | None = None) -> NoReturn:
    """Run one command and exit with its code."""
    words = sys.argv[1:] if argv is None else argv
    command_lines.forget()
    _open_closed_streams()
    replace_unencodable()
    threading.excepthook, previous_hook = (
        lambda thread: _report_thread_error(thread.exc_value, words),
        threading.excepthook,
    )
    try:
        interrupts.raise_on_ctrl_c()
        if "--version" in words and {*words} & {"-v", "--verbose"} and not _command_in(words):
            from clusterddp.cli.versions import say_versions  # noqa: PLC0415 - only for reports of bugs

            say_versions()
            words = ["--version"]
        with interrupts.waking_main_thread():
            code = cli.main(args=words, prog_name="clusterddp", standalone_mode=False)
    except click.exceptions.Exit as error:
        code = error.exit_code
    except click.Abort:
        code = EXIT_INTERRUPTED
    except click.ClickException as error:
        say_last(_click_message(error, words))
        code = EXIT_NOT_THE_SCRIPT if _exits_with_script_code(words) else EXIT_USAGE
    except ClusterddpError as error:
        _say_error(error)
        for_a_script = _exits_with_script_code(words) and not isinstance(error, ScriptError)
        code = EXIT_NOT_THE_SCRIPT if for_a_script else error.exit_code
    except KeyboardInterrupt:
        _exit_at_once(EXIT_INTERRUPTED)
    except OSError as error:  # a full disk under stdout, a file of ours that cannot be read
        discard(STDOUT)
        say_last(f"{error.filename or 'cannot write or read'}: {error.strerror or error}")
        code = EXIT_NOT_THE_SCRIPT if _exits_with_script_code(words) else EXIT_FAILED
    except Exception as error:  # noqa: BLE001 - a bug of ours
        _report_bug(error, words)
        code = EXIT_NOT_THE_SCRIPT if _exits_with_script_code(words) else EXIT_FAILED
    finally:
        threading.excepthook = previous_hook
        prompt.restore_echo()
    sys.exit(code if isinstance(code, int) else 0)


def _open_closed_streams() -> None:
    """Open the null device for closed standard streams; else the next file or socket would get their number."""
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        if getattr(sys, name) is None:
            handle = os.open(os.devnull, os.O_RDWR)
            if handle != number:
                os.dup2(handle, number)
            setattr(sys, name, os.fdopen(number, "w" if number else "r", encoding="utf-8"))


def _exit_at_once(code: int, line: str = INTERRUPTED_MESSAGE) -> NoReturn:
    """Print ``line`` and exit at once after Ctrl-C or SIGTERM, though threads may still wait for hosts."""
    prompt.restore_echo()
    say_last(line)
    with contextlib.suppress(OSError):  # nobody reads it any longer
        if can_write_now(sys.stdout.buffer):
            sys.stdout.flush()
    os._exit(code)


def _say_error(error: ClusterddpError) -> None:
    """Print an error as one line; what is the same on several hosts is printed once, for all of them."""
    hosts: dict[str, list[str]] = {}
    for host_error in single_errors(error):
        host = host_error.host if isinstance(host_error, HostError) else ""
        hosts.setdefault(str(host_error).removeprefix(f"{host}: ") if host else str(host_error), []).append(host)
    for text, names in hosts.items():
        say_last(f"{folded_names(names)}: {text}" if names[0] else text)


def _report_thread_error(error: BaseException | None, words: list[str]) -> None:
    """Report a bug in a thread that nobody waits for; the command goes on and keeps its own exit code."""
    if isinstance(error, Exception):
        _report_bug(error, words)


def _report_bug(error: Exception, words: list[str]) -> None:
    """Report a bug of ours: one line that names its crash file, or the traceback if no file can be written."""
    try:
        from clusterddp.project.crash import report_crash  # noqa: PLC0415 - only for reports of bugs

        for line in report_crash(error, words):
            say_last(line)
    except Exception:  # noqa: BLE001 - what writes crash files cannot even be imported
        with writing_last():
            traceback.print_exception(error)


def _exits_with_script_code(words: list[str]) -> bool:
    """Whether the exit code is the script's: for ``run`` and ``logs --follow``."""
    command = _command_in(words)
    # -f, also behind other short flags without a value (-t, -v), and before any, as in -tf and -fn5
    follows = any(word == "--follow" or re.match("-[tv]*f", word) for word in words)
    return command == "run" or (command == "logs" and follows)


def _command_in(words: list[str]) -> str:
    """Return the first word that is neither an option nor an option's value."""
    folders = {index + 1 for index, word in enumerate(words) if word == "-C"}
    return next((word for index, word in enumerate(words) if index not in folders and not word.startswith("-")), "")


def _click_message(error: click.ClickException, words: list[str]) -> str:
    """Return click's message as one line: what, where, the remedy."""
    context: Any = getattr(error, "ctx", None)
    command = _command_in(words)  # click gives no context if an option lacks its value
    path = context.command_path if context else f"clusterddp {command}" if command in COMMANDS else "clusterddp"
    message = error.format_message().rstrip(".").replace("\n", " ")
    if isinstance(error, click.exceptions.NoArgsIsHelpError):
        return f"no command given; one of {', '.join(COMMANDS)}; see clusterddp --help"
    if isinstance(error, click.NoSuchOption):
        return _no_such_option(error, path)
    if isinstance(error, click.BadParameter) and not isinstance(error, click.MissingParameter):
        message = f"{_origin_of_value(error)}{error.message.rstrip('.')}"
    return _with_help_hint(message, path)


def _with_help_hint(message: str, path: str) -> str:
    """Return the message with a hint at ``--help`` of the command at ``path``."""
    return f"{message}{'' if message.endswith('?') else ';'} see {path} --help"


def _no_such_option(error: click.NoSuchOption, path: str) -> str:
    """Return the message for an unknown option of the command at ``path``: where it belongs, or what is close."""
    option = error.option_name.replace("_", "-")
    if path.endswith(" run") and option.startswith(_TORCHRUN_OPTIONS):
        return f"{option} is set by clusterddp itself, the same on every host; leave it out"
    options = error.possibilities or []
    similar = next((name for name in options if name.startswith(option)), "") or nearest(option, options)
    suggestion = f"; did you mean {similar}?" if similar else ""
    where = ""
    if path.endswith(" run"):
        where = "; torchrun's own go through --torchrun-arg, the script's stand after SCRIPT"
    elif " " not in path and not suggestion:
        where = "; a command's own stand after its name"
    return _with_help_hint(f"no such option {option}{where}{suggestion}", path)


def _origin_of_value(error: click.BadParameter) -> str:
    """Return where a wrong value was given: the option, or the variable or key that set it."""
    parameter, context = error.param, error.ctx
    if parameter is None or context is None:
        return ""
    source = context.get_parameter_source(parameter.name or "")
    if source is click.core.ParameterSource.ENVIRONMENT:
        return f"{parameter.envvar}: "
    if source is click.core.ParameterSource.DEFAULT_MAP:
        from clusterddp.cli.pyproject import setting_location  # noqa: PLC0415 - only to name a wrong setting of the project

        return f"{setting_location(parameter.name or '')}: "
    flags = [name for name in parameter.opts if name.startswith("--")] or [parameter.human_readable_name]
    return f"{flags[0]}: "


if __name__ == "__main__":
    main()
