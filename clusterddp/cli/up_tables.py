"""Print the tables of ``up``: what each host is, and unknown host keys."""

from __future__ import annotations

from typing import TYPE_CHECKING

from clusterddp.cli.tables import Table, escape, show

if TYPE_CHECKING:
    from collections.abc import Sequence

    from clusterddp.errors import HostKeyError
    from clusterddp.launch.host_report import HostReport

_GIB = 1 << 30


def print_cluster(reports: Sequence[HostReport]) -> None:
    """Print a row for each host as ``up`` found it."""
    table = Table("host", "address", "nic", "gpus", "cores", "memory", "python", "torch", "ranks")
    for report in reports:
        facts = report.facts
        memory = f"{facts.memory_bytes / _GIB:.0f} GiB" if facts.memory_bytes else "?"
        first, last = report.ranks or ("spare", "spare")
        table.add(
            escape(report.host),
            escape(report.address),
            escape(report.interface),
            escape(_gpu_counts(report)),
            str(facts.cores),
            memory,
            escape(facts.python_version or "-"),
            escape(facts.torch.version if facts.torch else "-"),
            str(first) if first == last else f"{first}-{last}",
        )
    show(table)


def _gpu_counts(report: HostReport) -> str:
    """Return a host's GPUs by model, as ``8× NAME``; ``-`` for none."""
    counts: dict[str, int] = {}
    for gpu in report.facts.gpus:
        counts[gpu.name] = counts.get(gpu.name, 0) + 1
    return ", ".join(f"{count}× {name}" for name, count in counts.items()) or "-"


def print_host_keys(errors: Sequence[HostKeyError]) -> None:
    """Print unknown host keys as one table on stderr, a jump host's once for all hosts behind it."""
    table = Table("host", "key")
    for owner, fingerprint in dict.fromkeys((key_owner(error), error.fingerprint) for error in errors):
        table.add(escape(owner), escape(fingerprint))
    show(table, stderr=True)


def key_owner(error: HostKeyError) -> str:
    """Return whose unknown key an error is about: the host's, or that of a jump host before it."""
    return f"jump host {error.jump_host}" if error.jump_host else error.host
