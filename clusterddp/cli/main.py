"""The command line's entry: the table of commands, and the one boundary where errors become a line and a code."""

from __future__ import annotations

import importlib
import os
import sys
from typing import Any, NoReturn

import click

from clusterddp import __version__
from clusterddp.errors import (
    EXIT_INTERRUPTED,
    EXIT_NOT_THE_SCRIPT,
    EXIT_USAGE,
    ClusterddpError,
    HostsError,
)

COMMANDS = ("up", "run", "logs", "status", "runs", "stop", "wait", "hosts")
# torchrun's options that the plan sets by itself; see clusterddp.plan.OWNED.
_OF_TORCHRUN = (
    "--rdzv",
    "--master",
    "--node-rank",
    "--standalone",
    "--local-addr",
    "--log-dir",
    "--redirects",
    "--tee",
)


class Commands(click.Group):
    """Commands by name, each imported from its own module only when it is used or listed."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - click's signature
        """In the order of the table."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002
        """The command's ``command`` object, or None."""
        if cmd_name not in COMMANDS:
            return None
        command: click.Command = importlib.import_module(f"clusterddp.cli.{cmd_name}").command
        return command


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="clusterddp")
def cli() -> None:
    """Train with PyTorch on several GPU machines from one terminal, over plain SSH."""


def say(line: str) -> None:
    """One stderr line of ours."""
    sys.stderr.write(f"clusterddp: {line}\n")
    sys.stderr.flush()


def main(argv: list[str] | None = None) -> NoReturn:
    """Run one command and exit with its code."""
    words = sys.argv[1:] if argv is None else argv
    try:
        code = cli.main(args=words, prog_name="clusterddp", standalone_mode=False)
    except click.exceptions.Exit as error:
        code = error.exit_code
    except click.Abort:
        code = EXIT_INTERRUPTED
    except click.ClickException as error:
        say(_click_line(error))
        code = EXIT_NOT_THE_SCRIPT if _is_job(words) else EXIT_USAGE
    except ClusterddpError as error:
        _say_error(error)
        code = EXIT_NOT_THE_SCRIPT if _is_job(words) else error.exit_code
    except KeyboardInterrupt:
        say("interrupted")
        code = EXIT_INTERRUPTED
    except BrokenPipeError:  # `clusterddp logs | head`: the reader has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        code = 141
    sys.exit(code if isinstance(code, int) else 0)


def _say_error(error: ClusterddpError) -> None:
    say(str(error))
    if isinstance(error, HostsError):
        for other in error.errors[1:]:
            say(str(other))


def _is_job(words: list[str]) -> bool:
    """Whether the exit code is the script's own space: ``run``, and ``logs --follow``."""
    command = next((word for word in words if not word.startswith("-")), "")
    return command == "run" or (command == "logs" and bool({"-f", "--follow"} & set(words)))


def _click_line(error: click.ClickException) -> str:
    """Click's message as one line with the remedy."""
    message = error.format_message().rstrip(".").replace("\n", " ")
    if isinstance(error, click.NoSuchOption):
        option = error.option_name.replace("_", "-")
        if option.startswith(_OF_TORCHRUN):
            return f"{option} is set by clusterddp itself, the same on every host; leave it out"
        return f"{message}; torchrun's other options go through --torchrun-arg, the script's own stand after SCRIPT"
    context: Any = getattr(error, "ctx", None)
    return f"{message}; see {context.command_path} --help" if context else message


if __name__ == "__main__":
    main()
