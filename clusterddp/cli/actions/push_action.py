"""``clusterddp push``: bring data and weights to every host, beside the project's code."""

from __future__ import annotations

from typing import TYPE_CHECKING

from clusterddp.cli.output import put
from clusterddp.cli.progress import Progress
from clusterddp.cli.session import open_cluster
from clusterddp.remote.shared.text.counted import counted
from clusterddp.text.folding import folded_names
from clusterddp.text.units import human_size

if TYPE_CHECKING:
    from pathlib import Path

    from clusterddp.sync.deliver import Delivered


def act(
    inventory: Path | None, limit: str | None, *, overwrite: bool, rate: int | None, spread: str, paths: tuple[str, ...]
) -> int:
    """Bring the files to the hosts and report it; return the exit code."""
    sources, dest = (paths[:-1], paths[-1]) if len(paths) > 1 else (paths, None)
    with open_cluster(inventory, limit) as cluster, Progress() as progress:
        cluster.progress = progress.show
        done = cluster.push(*sources, to=dest, overwrite=overwrite, rate=rate, spread=spread)
    groups: dict[tuple[str, int, int], list[Delivered]] = {}
    for host in done:
        groups.setdefault((host.folder, host.files, host.sent_bytes), []).append(host)
    for (folder, files, size), hosts in groups.items():
        summary = f"{counted(files, 'file')} put there, {human_size(size)} sent" if files else "all is there"
        put(f"{folded_names([host.name for host in hosts])}: {folder}: {summary}")
    return 0
