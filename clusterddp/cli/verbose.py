"""``-v``: print on stderr what a command does, each line with the milliseconds since its start."""

from __future__ import annotations

import contextlib
import logging
import time

import click

from clusterddp.cli.output import say


class _RecordPrinter(logging.Handler):
    """Prints each line of a log record as a message on stderr, without secrets."""

    def __init__(self) -> None:
        super().__init__()
        self._began = time.monotonic()

    def emit(self, record: logging.LogRecord) -> None:
        from clusterddp.project.crash import without_secrets  # noqa: PLC0415 - without -v nothing is told

        milliseconds = (time.monotonic() - self._began) * 1000
        with contextlib.suppress(OSError):  # nobody reads stderr any more
            for line in without_secrets(record.getMessage()).splitlines():
                say(f"{milliseconds:6.0f} ms  {line}")


def print_records(context: click.Context, _parameter: click.Parameter, value: bool) -> bool:  # noqa: FBT001 - click's signature
    """Callback of ``-v``: print log records from now to the command's end."""
    if value:
        handler, logger = _RecordPrinter(), logging.getLogger("clusterddp")
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
    """Return ``-v`` for any command; one that shows more with it declares its own, with ``print_records``."""
    return click.Option(
        ["-v", "--verbose"],
        is_flag=True,
        is_eager=True,
        expose_value=False,
        callback=print_records,
        help="Tell what is asked of which host, which way, and how long it takes.",
    )
