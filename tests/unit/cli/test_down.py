"""The table of `down`: what was removed, what stays and why, equal rows of hosts together."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from clusterddp.cli.down_tables import print_rows, rows_of_cleanup, rows_of_everything, rows_of_holdings, rows_that_stay
from clusterddp.environments.removal import EnvironmentFound
from clusterddp.remote.shared.cleanup.cleanup_records import WorkdirHeld
from clusterddp.runs.cleanup import Cleaned
from clusterddp.runs.holdings import EverythingRemoved, Holdings
from clusterddp.runs.named_workdirs import WorkdirsRemoved

if TYPE_CHECKING:
    from collections.abc import Mapping

SAID: list[tuple[Mapping[str, Any], list[tuple[str, int | None, str]]]] = [
    ({}, []),
    (
        {"spools": 1, "run_dirs": 2, "helpers": 1, "warm": True, "bytes": 1_310_000_000, "nothing_left": True},
        [
            (
                "removed",
                1_310_000_000,
                "1 spool, 2 run dirs, 1 helper, 1 warm server; nothing of clusterddp is left",
            )
        ],
    ),
    ({"kept": ("r1",)}, [("stays", None, "run r1: it has processes here; `clusterddp stop r1` ends them")]),
    (
        {"left": (("/state/rundirs/r1-gpu00", "Permission denied"),)},
        [
            (
                "failed",
                None,
                "/state/rundirs/r1-gpu00: Permission denied; `clusterddp down --purge` again finishes the work",
            )
        ],
    ),
    (
        {"error": "gpu00: no route to host"},
        [("failed", None, "no route to host; `clusterddp down --purge` again finishes the work")],
    ),
]
AGAIN = "clusterddp down --everything"
FOLDER = WorkdirHeld(
    path="/home/alice/clusterddp/toy-1", ident="word", bytes=5000, own=4, own_bytes=4000, largest=("ckpt/last.pt",)
)


@pytest.mark.parametrize(("told", "rows"), SAID)
def test_a_row_for_everything(told: Mapping[str, Any], rows: list[tuple[str, int | None, str]]) -> None:
    assert [
        tuple(row)[1:] for row in rows_of_cleanup([Cleaned(host="gpu00", **told)], "clusterddp down --purge")
    ] == rows


def test_equal_rows_of_hosts_are_one_and_what_stays_says_why(capsys: pytest.CaptureFixture[str]) -> None:
    hosts = [f"gpu{number:02}" for number in range(4)]
    held = [Holdings(host=host, runs=3, workdirs=(FOLDER,), pushed=(("/data/set", 1),)) for host in hosts]
    cleaned = [Cleaned(host=host, spools=1, bytes=2000, runs_left=2) for host in hosts]
    last = EnvironmentFound(host="gpu00", ident="3fa1c0", lock="uv.lock", bytes=9000, used=1, stays="it is used")
    print_rows(
        [
            *rows_of_cleanup(cleaned, "clusterddp down"),
            *rows_that_stay(held, [last], cleaned, workdir="/clusterddp/toy-1"),
        ]
    )
    lines = [line.removeprefix("clusterddp: ").split(None, 3) for line in capsys.readouterr().err.splitlines()]
    assert lines == [
        ["hosts", "outcome", "size", "what"],
        ["gpu[00:03]", "removed", "2_kB", "1 spool"],
        ["gpu[00:03]", "stays", "5_kB", f"{FOLDER.path}: this project's code and data; --everything removes it"],
        ["gpu[00:03]", "stays", "-", "2 runs on record: 30 days, or with --purge"],
        ["gpu[00:03]", "stays", "-", "1 file that you have pushed to /data/set"],
        ["gpu00", "stays", "9_kB", "environment 3fa1 of uv.lock: it is used"],
    ]


def test_a_shared_folder_that_one_host_removed_stays_on_none() -> None:
    others = FOLDER._replace(path="/home/alice/clusterddp/toy-1@exp", ident="other")
    unnamed = others._replace(ident="")
    held = [Holdings(host=host, workdirs=(others, unnamed)) for host in ("gpu00", "gpu01")]
    removed = WorkdirsRemoved(host="gpu00", removed=(others.path, unnamed.path))
    cleaned = [Cleaned(host="gpu00", named_workdirs=removed), Cleaned(host="gpu01")]
    assert [row.host for row in rows_that_stay(held, [], cleaned, workdir="/toy-1")] == ["gpu01"]


def test_what_would_be_lost_is_named_and_what_stays_is_no_success() -> None:
    held = [Holdings(host="gpu00", states=(("/home/alice/.clusterddp", 100),), runs=1, workdirs=(FOLDER,))]
    assert [row.what for row in rows_of_holdings(held)] == [
        "/home/alice/.clusterddp: 1 run on record, helpers, environments",
        f"{FOLDER.path}: with 4 files (4 kB) that no sync has put there: ckpt/last.pt and 3 more",
    ]
    left = (("/home/alice/clusterddp/toy-1/theirs", "it belongs to another user"),)
    rows = rows_of_everything([EverythingRemoved(host="gpu00", removed=("/x",), bytes=7, left=left)], held, AGAIN)
    assert [row[1:] for row in rows] == [("removed", 7, "/x"), ("stays", None, ": ".join(left[0]))]
    (row,) = rows_of_everything([EverythingRemoved(host="gpu00", removed=("/x", "/y"), bytes=7)], held, AGAIN)
    assert row.what == "/x, /y; nothing of clusterddp is left"
