"""``-v``: print on stderr what a command does, each line with the milliseconds since its start."""

from __future__ import annotations

import contextlib
import logging
import time

import click

from clusterddp.cli.output import say


class _Lines(logging.Handler):
    """Prints each line of a log record as a message of ours, without secrets."""

    def __init__(self) -> None:
        super().__init__()
        self._began = time.monotonic()

    def emit(self, record: logging.LogRecord) -> None:
        from clusterddp.project.crash import without_secrets  # noqa: PLC0415 - without -v nothing is told

        after = (time.monotonic() - self._began) * 1000
        with contextlib.suppress(OSError):  # nobody reads stderr any more
            for line in without_secrets(record.getMessage()).splitlines():
                say(f"{after:6.0f} ms  {line}")


def tell(context: click.Context, _parameter: click.Parameter, value: bool) -> bool:  # noqa: FBT001 - click's signature
    """Callback of the option: print log records from now to the command's end."""
    if value:
        handler, logger = _Lines(), logging.getLogger("clusterddp")
        logger.addHandler(handler)
        logger.setLevel(logging.DEBUG)

        def end() -> None:
            logger.removeHandler(handler)
            logger.setLevel(logging.NOTSET)

        context.call_on_close(end)
    return value


def is_on() -> bool:
    """Whether the user gave ``-v``."""
    return logging.getLogger("clusterddp").isEnabledFor(logging.DEBUG)


def option() -> click.Option:
    """Return ``-v`` for any command; a command that also uses it otherwise declares its own with ``callback=tell``."""
    return click.Option(
        ["-v", "--verbose"],
        is_flag=True,
        is_eager=True,
        expose_value=False,
        callback=tell,
        help="Tell what is asked of which host, which way, and how long it takes.",
    )
