"""``clusterddp sync``: bring the project's code to every host, and print what changed or would change."""

from __future__ import annotations

from typing import TYPE_CHECKING

from clusterddp.cli.output import put, say
from clusterddp.cli.progress import Progress
from clusterddp.cli.session import open_cluster
from clusterddp.remote.shared.text.counted import counted
from clusterddp.text.folding import folded_names
from clusterddp.text.paths import shown
from clusterddp.text.units import human_size

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from clusterddp.sync.result import Changes, HostSync

_MAX_LINES = 20  # files that are listed for a group of hosts


def act(
    inventory: Path | None,
    limit: str | None,
    *,
    dry_run: bool,
    sync_limit: int | None,
    rate: int | None,
    spread: str,
    take: str | None,
) -> int:
    """Sync the code and print the changes; return the exit code."""
    with open_cluster(inventory, limit) as cluster, Progress() as progress:
        cluster.progress = progress.show
        result = cluster.sync(dry=dry_run, limit=sync_limit, rate=rate, spread=spread, take=take)
    groups: dict[tuple[Changes, tuple[str, ...]], list[HostSync]] = {}
    for host in result.hosts:
        groups.setdefault((host.changes, host.conflicts), []).append(host)
    for hosts in groups.values():
        put(f"{folded_names([host.name for host in hosts])}: {_summary(hosts[0], dry=dry_run)}")
        lines = list(_change_lines(hosts[0].changes))
        lines += [f"  ! {shown(path)}" for path in hosts[0].conflicts]
        for line in lines[:_MAX_LINES]:
            put(line)
        if lines[_MAX_LINES:]:
            put(f"  … and {len(lines) - _MAX_LINES} more")
    if not dry_run:
        say(f"code {result.digest[:12]} is on {counted(len(result.hosts), 'host')}")
    return 0


def _summary(host: HostSync, *, dry: bool) -> str:
    """Return how many files were (``dry``: would be) new, changed and removed, and how many need a decision."""
    changes = host.changes
    to_decide = f"{len(host.conflicts)} to decide" if host.conflicts else ""
    if not changes:
        return to_decide or "nothing to change"
    counts = {"new": len(changes.new), "changed": len(changes.changed), "removed": len(changes.removed)}
    summary = ", ".join(f"{count} {what}" for what, count in counts.items() if count)
    return (
        f"{'would be ' if dry else ''}{summary}; {human_size(host.sent_bytes)} {'to send' if dry else 'in these files'}"
        f"{'; ' if to_decide else ''}{to_decide}"
    )


def _change_lines(changes: Changes) -> Iterator[str]:
    """Return a line for each file, with ``+``, ``~`` or ``-``."""
    for sign, paths in (("+", changes.new), ("~", changes.changed), ("-", changes.removed)):
        for path in paths:
            yield f"  {sign} {shown(path)}"
