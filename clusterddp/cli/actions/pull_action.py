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
from clusterddp.sync.project_files import new_data
from clusterddp.text.folding import few, folded_names
from clusterddp.text.paths import shown
from clusterddp.text.units import human_size

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from pathlib import Path

    from clusterddp.sync.transfer.collect import Pulled

_NAMED = 5


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
    most = 1 if run else 2
    if len(words) > most:
        raise UsageError(f"{words[most]}: one word too many", remedy="write [RUN|PATH] [DEST], or --run RUN [DEST]")
    what, dest = (None, *words, None)[:2] if run else (*words, None, None)[:2]
    with open_cluster(inventory, limit) as cluster, Progress() as progress:
        cluster.progress = progress.show
        done = cluster.pull(what, dest, run=run, rank=rank, host=host, overwrite=overwrite)
        advice = _advice(new_data(cluster.project, done.folder, done.paths))
    for line in (*advice, *_notices(done)):
        say(line)
    count = f"{counted(done.files, 'file')}, {human_size(done.bytes)}"
    same = f"; {done.same} here already" if done.same else ""
    put(f"{done.folder}: {count} from {folded_names(done.hosts)}{same}")
    return 0 if done.whole else 1


def _advice(paths: Sequence[str]) -> Iterator[str]:
    """Say how to keep data that is now part of the project out of the next sync."""
    if not paths:
        return
    common = paths[0] if len(paths) == 1 else posixpath.commonpath(paths)
    rules = [common] if common else dict.fromkeys(path.partition("/")[0] for path in paths)
    words = " ".join(shlex.quote("/" + shown(rule)) for rule in rules)
    yield (
        f"{_paths(paths)}: part of the project from now on; to keep that out of the next sync, add to its .gitignore:"
        f" {words}"
    )


def _notices(done: Pulled) -> Iterator[str]:
    """Return what the user should know, a line each."""
    for error in done.errors:
        yield str(error)
    reasons: dict[str, list[str]] = {}
    for host, path, why in done.skipped:
        reasons.setdefault(why, []).append(f"{host}:{shown(path)}")
    for why, paths in reasons.items():
        yield f"left out, {why}: {few(paths, _NAMED)}"
    if done.others:
        yield f"run {', '.join(done.others)} wrote in the same folder: its files are among these"
    if done.differing:
        yield f"not the same on all hosts, each in a folder of its host's name: {_paths(done.differing)}"
    if done.kept:
        yield f"here is something else by that name, which stays: {_paths(done.kept)}; --overwrite replaces it"
    if done.changing:
        yield f"changed each time it was read: {_paths(done.changing)}; pull again"


def _paths(paths: Iterable[str]) -> str:
    return few([shown(path) for path in paths], _NAMED)
