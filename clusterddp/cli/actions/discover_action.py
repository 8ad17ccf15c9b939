"""``clusterddp discover``: find rank 0 on one network segment; print its address, or start a command with it."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import signal
from typing import TYPE_CHECKING, NoReturn

import click

from clusterddp.cli.output import say
from clusterddp.discover import DiscoverOptions, discover, torchrun_env
from clusterddp.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

KEY_VARIABLE = "CLUSTERDDP_DISCOVER_KEY"


def act(
    *,
    identity: str,
    rank: int,
    world_size: int,
    port: int | None,
    interface: str | None,
    timeout: float,
    key_file: Path | None,
    as_json: bool,
    words: tuple[str, ...],
) -> int:
    """Find rank 0, then print its address or start COMMAND; return the exit code."""
    program = _find_program(words, as_json=as_json)
    options = DiscoverOptions(
        id=identity,
        rank=rank,
        world_size=world_size,
        timeout=timeout,
        interface=interface,
        port=port,
        key=_read_key(key_file),
    )
    signal.signal(signal.SIGTERM, _raise_interrupt)  # a pod's first process would ignore it
    found = discover(options, say)
    values = {"MASTER_ADDR": found.master_addr, "MASTER_PORT": str(found.master_port), "LOCAL_ADDR": found.local_addr}
    if program:
        _exec_program(program, words, {**values, **torchrun_env(options, found)})
    if as_json:
        fields = {"id": identity, "rank": rank, "world_size": world_size, "master_addr": found.master_addr}
        click.echo(json.dumps({**fields, "master_port": found.master_port, "local_addr": found.local_addr}))
    else:
        click.echo("\n".join(f"{name}={shlex.quote(value)}" for name, value in values.items()))
    return 0


def _raise_interrupt(number: int, _: object) -> NoReturn:
    """Signal handler that acts as Ctrl-C."""
    raise KeyboardInterrupt(number)


def _find_program(words: tuple[str, ...], *, as_json: bool) -> str | None:
    """Return the path of COMMAND's program; None without a COMMAND. Raises UsageError if there is no such program."""
    if not words:
        return None
    if as_json:
        raise UsageError("--json prints and COMMAND runs", remedy="give one of them")
    program = shutil.which(words[0])
    if program is None:
        raise UsageError(f"{words[0]}: no such command on this PATH", remedy="give its path")
    return program


def _read_key(file: Path | None) -> bytes | None:
    """Return the key of the file, else of the environment; a command line could be read by all on the machine."""
    try:
        written = file.read_bytes() if file else os.environb.get(KEY_VARIABLE.encode())
    except OSError as error:
        raise UsageError(f"--key-file {file}: {error.strerror}", remedy="give a file that holds the key") from None
    if not file and not written:
        return None
    key = (written or b"").strip()  # a Secret's newline is in a variable as well
    if not key:
        where = f"--key-file {file}" if file else KEY_VARIABLE
        raise UsageError(f"{where}: it is empty", remedy="`openssl rand -hex 32` makes a key")
    return key


def _exec_program(program: str, words: tuple[str, ...], values: Mapping[str, str]) -> NoReturn:
    """Replace this process by COMMAND, with ``values`` in its environment and without the key."""
    env = {**os.environ, **values}
    env.pop(KEY_VARIABLE, None)
    for name in (signal.SIGPIPE, signal.SIGXFSZ):  # Python ignores them, and a new program would go on doing so
        signal.signal(name, signal.SIG_DFL)
    try:
        os.execve(program, words, env)
    except OSError as error:
        raise UsageError(f"{program}: {error.strerror}", remedy="give a program") from None
