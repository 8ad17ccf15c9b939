"""What holds after every scenario, whatever was done: no process left, nothing half written, every line once."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from tests.integration.cli import STATE, wait_until_nothing_is_left
from tests.lab.system import LabError, ProcessId, kill_and_wait

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from tests.integration.cli import Done, User
    from tests.lab.host import LabHost

PATIENCE = 90.0  # seconds until nothing is left; a start that was cut short ends itself after 60
_NUMBERED = re.compile(r"line (\d+)")
_STAGING = re.compile(r"\.clusterddp-[0-9a-f]{16}")  # of a sync under way, in a workdir


@dataclass(frozen=True, kw_only=True, slots=True)
class Account:
    """Numbered lines that were never shown, or shown again, and ranks whose lines came in another order."""

    lost: int
    doubled: int
    disordered: tuple[int, ...]


NOTHING_AMISS = Account(lost=0, doubled=0, disordered=())


def account(done: Done, lines: int, ranks: int) -> Account:
    """What a command showed of the numbered lines of workers."""
    lost = doubled = 0
    disordered = []
    for rank in range(ranks):
        numbers = [
            int(match[1]) for said in done.workers if said.rank == rank and (match := _NUMBERED.match(said.text))
        ]
        once = list(dict.fromkeys(numbers))
        lost += len(set(range(lines)) - set(once))
        doubled += len(numbers) - len(once)
        if once != sorted(once):
            disordered.append(rank)
    return Account(lost=lost, doubled=doubled, disordered=tuple(disordered))


def hold(hosts: Sequence[LabHost], user: User, runs: Sequence[str], *, torn: bool) -> None:
    """Everything that must be so when a scenario is over, on the hosts that are on."""
    on = [host for host in hosts if host.running]
    for host in on:
        try:
            wait_until_nothing_is_left([host], STATE, PATIENCE)
        except LabError as error:
            left = [" ".join(seen.cmdline) for seen in host.leftovers(STATE)]
            raise AssertionError(f"{error}: {left}") from None
    for run in runs:
        assert [host.name for host in on if host.leftovers(run)] == []
    if torn:
        return
    halves = [half for host in on for half in half_written(root(host) / "home")] + half_written(user.folder)
    assert not halves, halves


def half_written(folder: Path) -> list[str]:
    """Files below a folder that somebody began and did not finish: temporary ones, and JSON that is none."""
    found = []
    for path in folder.rglob("*"):
        if path.name.endswith((".tmp", ".new.idx")) or _STAGING.fullmatch(path.name):
            found.append(f"{path}: temporary")
        elif path.suffix in {".json", ".jsonl"} and path.is_file():
            found += [f"{path}: {text[:80]!r}" for text in _documents(path) if not _is_json(text)]
    return found


def _documents(path: Path) -> Iterator[str]:
    text = path.read_text(errors="replace")
    yield from text.splitlines() if path.suffix == ".jsonl" else [text]


def _is_json(text: str) -> bool:
    try:
        json.loads(text)
    except ValueError:
        return False
    return True


def root(host: LabHost) -> Path:
    """The host's `/`, as the operator can look into it."""
    return Path(f"/proc/{host.init.pid}/root")


def spool(host: LabHost, run: str) -> Path:
    """A run's spool on a host, by the state's default place."""
    (found,) = (root(host) / f"home/{host.users[0].name}/.clusterddp/runs/{run}").glob(f"*/*-{host.name}")
    return found


def recorded(hosts: Sequence[LabHost], run: str) -> str:
    """What the supervisors of a run put on record, in the order of time: what led to an end that is not understood."""
    found = []
    for host in [host for host in hosts if host.running]:
        for path in (root(host) / f"home/{host.users[0].name}/.clusterddp/runs/{run}").glob("*/*/events.jsonl"):
            events = [json.loads(text) for text in _documents(path) if _is_json(text)]
            found += [
                (event["time"], f"{path.parent.parent.name}/{path.parent.name} {event}"[:300]) for event in events
            ]
    return "\n".join(text for _, text in sorted(found))


def sweep(host: LabHost) -> None:
    """End and remove whatever of ours a failed scenario has left, so that it fails no other."""
    left = [ProcessId.of(seen.pid) for seen in host.leftovers(STATE)]
    kill_and_wait([process for process in left if process])
    for path in (root(host) / "home").rglob("*.tmp"):
        path.unlink()
