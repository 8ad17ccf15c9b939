"""The doctor's checks of a host's limits, login, folders and packages, over made evidence."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from clusterddp.checks import Evidence, RunSeen
from clusterddp.facts import Cgroup, Login, Write
from tests.unit.evidence_made import cluster, folder, said, seen, wrong

NAMES = ("gpu01", "gpu02", "gpu03")
MIB, GIB = 1 << 20, 1 << 30


def changed(**fields: Any) -> Evidence:
    """A cluster whose second host differs."""
    return cluster(seen("gpu02", *NAMES, **fields))


def unhealthy(**fields: Any) -> Evidence:
    return changed(health=fields)


# (what gpu02's health is, what is said of it)
HEALTH: list[tuple[dict[str, Any], str, str, str]] = [
    ({"cgroup": Cgroup(cpu_thousandths=500)}, "cgroup", "warn", "allows 0.5 CPUs, for workers: 1"),
    ({"cgroup": Cgroup(memory_bytes=GIB, memory_left=300 * MIB)}, "cgroup", "warn", "allows 300 MiB more memory"),
    ({"cgroup": None}, "cgroup", "unknown", "could not look"),
    (
        {"login": Login(python="/opt/conda/bin/python")},
        "login-python",
        "warn",
        "finds /opt/conda/bin/python, a job",
    ),
    ({"login": Login()}, "login-python", "warn", "a login finds no Python, a job /usr/bin/python3"),
    ({"login": Login(error="csh is not known")}, "login-python", "unknown", "could not look: csh is not known"),
    (
        {"writes": {"workdir": Write(ms=2500)}},
        "write-time",
        "warn",
        "on disk after 2.5 s in workdir /workdir",
    ),
    ({"writes": {"state": Write(error="Quota exceeded")}}, "writable", "fail", "state /state (Quota exceeded)"),
]


@pytest.mark.parametrize(("fields", "name", "verdict", "words"), HEALTH, ids=[f"{row[1]} {row[3]}" for row in HEALTH])
def test_a_fault_in_the_health_is_named(fields: dict[str, Any], name: str, verdict: str, words: str) -> None:
    (result,) = wrong(unhealthy(**fields))
    assert (result.name, result.verdict, result.hosts) == (name, verdict, ("gpu02",))
    assert words in result.message
    assert verdict == "unknown" or (result.symptom and result.fix)


def test_limits_that_leave_enough_pass() -> None:
    assert said(unhealthy(cgroup=Cgroup(memory_bytes=2 * GIB, memory_left=GIB, cpu_thousandths=1000))) == []


def test_what_the_inventory_says_of_python_is_meant_whatever_a_login_finds() -> None:
    other = {"login": Login(python="/opt/conda/bin/python")}
    meanings: list[dict[str, Any]] = [{"python": "/usr/bin/python3"}, {"setup": ("module load python",)}]
    for meant in meanings:
        assert said(changed(entry=meant, health=other)) == []


def test_a_disk_that_is_full_is_not_told_as_one_that_cannot_be_written() -> None:
    folders = {**{key: folder(f"/{key}") for key in ("state", "tmp")}, "workdir": folder("/work", free_bytes=0)}
    full = {"workdir": Write(error="No space left on device")}
    assert said(unhealthy(folders=folders, writes=full)) == [("disk", "fail", ("gpu02",))]


def test_a_host_that_does_not_tell_its_runs_is_unknown_alone() -> None:
    live = RunSeen(run="abc", hosts=("gpu01", "gpu02"))
    silent = replace(seen("gpu02", *NAMES), runs_error="the operation took too long")
    assert said(cluster(silent, runs=(live,))) == [
        ("live-runs", "unknown", ("gpu02",)),
        ("live-runs", "warn", ("gpu01",)),
        ("leftovers", "unknown", ("gpu02",)),
    ]
