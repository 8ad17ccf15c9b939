"""Shell completion of hosts, groups, runs, ranks and checks, from files of this machine alone.

The user waits while click asks, so any error yields no words and no message.
"""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from click.shell_completion import CompletionItem

from clusterddp.cli.project_options import current_project
from clusterddp.errors import ClusterddpError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    import click

    from clusterddp.inventory import HostEntry

    Complete = Callable[[click.Context, click.Parameter, str], list[str]]

_SEPARATOR = re.compile(r"(.*[,:&!]!?)?([^,:&!]*)")
# Names come from files that another may have made, and the shell puts a word into the line as it is.
_SAFE = re.compile(r"[\w./:][\w./:,@%+=-]*")
_MAX_RUNS = 50  # the newest of the project's index
_MAX_RANKS = 256


def _make_completer(words: Callable[[click.Context], Iterable[str]], *, several: bool) -> Complete:
    """Make a callback for click from what offers ``words``; ``several``: of a list only the last item is completed."""

    def complete(context: click.Context, _parameter: click.Parameter, incomplete: str) -> list[str]:
        found = _SEPARATOR.fullmatch(incomplete) if several else None
        before, last = (found[1] or "", found[2]) if found else ("", incomplete)
        try:
            return [before + word for word in words(context) if word.startswith(last) and _SAFE.fullmatch(word)]
        except (ClusterddpError, OSError):  # completion prints no error; the command will
            return []

    return complete


def _inventory_hosts(context: click.Context) -> Sequence[HostEntry]:
    from clusterddp.cli.inventory_choice import choose, read_chosen  # noqa: PLC0415 - reads YAML

    named = context.params.get("inventory")
    chosen = choose(current_project(), Path(named) if named else None, None)
    return read_chosen(replace(chosen, limit=None)).hosts


def _host_names(context: click.Context) -> Iterable[str]:
    return [host.name for host in _inventory_hosts(context)]


def _hosts(context: click.Context) -> Iterable[str]:
    hosts = _inventory_hosts(context)
    groups = {group for host in hosts for group in host.groups}
    return [*(host.name for host in hosts), *sorted(groups), "all"]


def _runs(_context: click.Context) -> Iterable[str]:
    newest = current_project().runs()[: -_MAX_RUNS - 1 : -1]
    names = [record.name for record in newest]
    words = [*names, *(record.run for record in newest)]
    return dict.fromkeys(word for word in words if word)


def _ranks(context: click.Context) -> Iterable[str]:
    """Complete the ranks of the run that is named before them, else of the newest."""
    named = context.params.get("run")
    worlds = [record.world_size for record in current_project().runs() if named in (None, record.run, record.name)]
    return map(str, range(min((worlds or [0])[-1] or 0, _MAX_RANKS)))


def _checks(_context: click.Context) -> Iterable[str]:
    from clusterddp.checks.catalog import TABLE  # noqa: PLC0415 - the whole catalogue of checks

    return [*dict.fromkeys(check.category for check in TABLE), *(check.name for check in TABLE)]


def _signals(_context: click.Context) -> Iterable[str]:
    from clusterddp.runs.signals import SIGNALS  # noqa: PLC0415 - --help completes nothing

    return [name.removeprefix("SIG") for name in SIGNALS]


def _playbooks(_context: click.Context) -> Iterable[str]:
    from clusterddp.provision.playbooks import NAMES  # noqa: PLC0415 - --help completes nothing

    files = [str(path) for prefix in ("", "*/") for path in Path().glob(f"{prefix}*.y*ml")]
    return [*NAMES, *(f"./{file}" if file in NAMES else file for file in files)]


def files(_context: click.Context, _parameter: click.Parameter, incomplete: str) -> list[CompletionItem[str]]:
    """Have the shell complete names of files."""
    return [CompletionItem(incomplete, type="file")]


def runs_or_files(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[CompletionItem[str]]:
    """Complete runs, and names of files."""
    # In bash an item of files removes what stands before it, and files are then offered where no run matches.
    found = files(context, parameter, incomplete)
    return [*found, *(CompletionItem(run) for run in runs(context, parameter, incomplete))]


host_name = _make_completer(_host_names, several=False)
hosts = _make_completer(_hosts, several=True)
runs = _make_completer(_runs, several=False)
ranks = _make_completer(_ranks, several=True)
checks = _make_completer(_checks, several=True)
signals = _make_completer(_signals, several=False)
playbooks = _make_completer(_playbooks, several=False)
