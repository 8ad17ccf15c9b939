"""``clusterddp pull``: bring checkpoints and outputs from the hosts to this machine."""

from __future__ import annotations

import posixpath
import shlex
from typing import TYPE_CHECKING

from clusterddp.cli.output import put, say
from clusterddp.cli.progress import Progress
from clusterddp.cli.session import open_cluster
from clusterddp.errors import UsageError
from clusterddp.remote.shared.text.counted import counted
from clusterddp.sync.project_files.gitignore import rule_for
from clusterddp.sync.project_files.project_tree import new_data
from clusterddp.text.folding import few, folded_names
from clusterddp.text.paths import shown
from clusterddp.text.units import human_size

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from pathlib import Path

    from clusterddp.sync.transfer.collect import Pulled

_MAX_NAMED = 5  # paths that a message names


def act(
    inventory: Path | None,
    limit: str | None,
    *,
    run: str | None,
    rank: tuple[int, ...] | None,
    host: str | None,
    overwrite: bool,
    words: tuple[str, ...],
) -> int:
    """Bring the files here and report them; return the exit code."""
    allowed = 1 if run else 2
    if len(words) > allowed:
        raise UsageError(f"{words[allowed]}: one word too many", remedy="write [RUN|PATH] [DEST], or --run RUN [DEST]")
    what, dest = (None, *words, None)[:2] if run else (*words, None, None)[:2]
    with open_cluster(inventory, limit) as cluster, Progress() as progress:
        cluster.progress = progress.show
        pulled = cluster.pull(what, dest, run=run, rank=rank, host=host, overwrite=overwrite)
        advice = _ignore_advice(new_data(cluster.project, pulled.folder, pulled.paths))
    for line in (*advice, *_notices(pulled)):
        say(line)
    count = f"{counted(pulled.files, 'file')}, {human_size(pulled.bytes)}"
    same = f"; {pulled.same} here already" if pulled.same else ""
    sources = f" from {folded_names(pulled.hosts)}" if pulled.hosts else ""
    place = pulled.folder if pulled.name in pulled.differing else pulled.folder / pulled.name
    put(f"{place}: {count}{sources}{same}")
    return 0 if pulled.whole else 1


def _ignore_advice(paths: Sequence[str]) -> Iterator[str]:
    """Say how to keep data that is now part of the project out of the next sync."""
    if not paths:
        return
    common = paths[0] if len(paths) == 1 else posixpath.commonpath(paths)
    rules = [common] if common else dict.fromkeys(path.partition("/")[0] for path in paths)
    words = " ".join(shlex.quote(shown(rule_for(rule))) for rule in rules)
    yield (
        f"{_few(paths)}: part of the project from now on; to keep that out of the next sync, add to its .gitignore:"
        f" {words}"
    )


def _notices(pulled: Pulled) -> Iterator[str]:
    """Return a line for each error, and for files that were left out, differ, stay, changed or are gone."""
    for error in pulled.errors:
        yield str(error)
    reasons: dict[str, list[str]] = {}
    for host, path, why in pulled.skipped:
        reasons.setdefault(why, []).append(f"{host}:{shown(path)}")
    for why, paths in reasons.items():
        yield f"left out, {why}: {few(paths, _MAX_NAMED)}"
    if pulled.others:
        yield f"run {', '.join(pulled.others)} wrote in the same folder: its files are among these"
    if pulled.differing:
        yield f"not the same on all hosts, each in a folder of its host's name: {_few(pulled.differing)}"
    if pulled.kept:
        yield f"here is something else by that name, which stays: {_few(pulled.kept)}; --overwrite replaces it"
    if pulled.changing:
        yield f"changed each time it was read: {_few(pulled.changing)}; pull again"
    if pulled.gone:
        yield f"removed on its host while it was read: {_few(pulled.gone)}"


def _few(paths: Iterable[str]) -> str:
    """Return the first paths as text, and how many more there are."""
    return few([shown(path) for path in paths], _MAX_NAMED)
