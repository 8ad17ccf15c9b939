"""Clean hosts for ``down``, and find processes of runs that have no supervisor."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from clusterddp.hosts.ask import ask, ask_list, reading_answer
from clusterddp.remote.shared.cleanup.cleanup_records import CleanAnswer, CleanRequest
from clusterddp.remote.shared.processes.process_records import OrphanedRun, OrphansRequest

if TYPE_CHECKING:
    from clusterddp.hosts.client import Host
    from clusterddp.hosts.fanout import HostGroup, Outcome
    from clusterddp.remote.shared.cleanup.cleanup_records import PathLeft
    from clusterddp.remote.shared.environment.environment_records import RemoveAnswer
    from clusterddp.runs.named_workdirs import WorkdirsRemoved

TIMEOUT = 600.0  # seconds; a spool may be many gigabytes on a slow disk


@dataclass(frozen=True, kw_only=True, slots=True)
class Cleaned:
    """The result of a cleanup on one host: what was removed, and what is left there."""

    host: str
    spools: int = 0  # how many nodes' spools were removed
    bytes: int = 0  # disk space that those and the run dirs took
    run_dirs: int = 0  # how many run dirs were removed
    helpers: int = 0  # how many copies of our helper were removed
    kept: tuple[str, ...] = ()  # ended runs of the project that still have processes, so their files were kept
    # workdirs that no recorded run mentions, with the days since the last sync; they are never removed
    workdirs: tuple[tuple[str, int], ...] = ()
    nothing_left: bool = False  # whether nothing of clusterddp is left on the host
    error: str = ""  # why the host could not be asked
    named_workdirs: WorkdirsRemoved | None = None  # the result for folders of `run --workdir`, if any were to go
    environments: Outcome[RemoveAnswer] | None = None  # the result for environments, if any were to be removed
    warm: bool = False  # whether a preload server was ended
    runs_left: int = 0  # how many of the host's runs stay on record, without those in ``kept``
    left: tuple[PathLeft, ...] = ()  # run dirs that could not be removed


@dataclass(frozen=True, kw_only=True, slots=True)
class Orphans:
    """Processes of a run on a host without a live supervisor; ``known``: stopping the run can end them."""

    host: str
    run: str
    known: bool
    processes: tuple[tuple[int, str], ...]


def clean(hosts: HostGroup, project: str | None, operation: str, *, purge: bool) -> list[Cleaned]:
    """Remove old spools and helpers on every host, or with ``purge`` all ended runs of the project.

    ``operation`` is the launcher's name for the host's part: ``clean``, or ``slurm_clean`` on a login host.
    """

    def clean_host(host: Host) -> Cleaned:
        request = CleanRequest(hosts=(host.name,), project=project, purge=purge)
        return Cleaned(host=host.name, **ask(host, operation, request, CleanAnswer, timeout=TIMEOUT)._asdict())

    outcomes = hosts.each(clean_host)
    return [outcome.value or Cleaned(host=outcome.name, error=str(outcome.error)) for outcome in outcomes]


def preload_server_memory(hosts: HostGroup) -> dict[str, int]:
    """Return the memory of each host's preload server in bytes; hosts without one are left out."""

    def memory_on(host: Host) -> int | None:
        kib = host.call("warm_server", {})
        with reading_answer(host.name):
            return None if kib is None else int(kib) << 10

    sizes = {outcome.name: outcome.value for outcome in hosts.each(memory_on)}
    return {name: size for name, size in sizes.items() if size is not None}


def orphans(hosts: HostGroup) -> list[Outcome[list[Orphans]]]:
    """Return, by host, the processes left over from ended or lost runs."""

    def orphans_on(host: Host) -> list[Orphans]:
        return [
            Orphans(
                host=host.name,
                run=orphaned.run,
                known=orphaned.known,
                processes=tuple((process.pid, process.command) for process in orphaned.processes),
            )
            for orphaned in ask_list(host, "orphans", OrphansRequest(hosts=(host.name,)), OrphanedRun)
        ]

    return hosts.each(orphans_on)
