"""Which stall guard a run has: by its options, by the inventory, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest

from clusterddp.errors import UsageError
from clusterddp.inventory import HostEntry
from clusterddp.launch.options import RunOptions
from clusterddp.launch.stall_limit import blind_notice, with_stall


def hosts(*limits: float, **more: Any) -> list[HostEntry]:
    return [HostEntry(name=f"gpu{at:02}", address="h", stall=limit, **more) for at, limit in enumerate(limits)]


def options(**given: Any) -> RunOptions:
    return RunOptions(script="train.py", **given)


@pytest.mark.parametrize(
    ("given", "limits", "stall"),
    [
        (None, (0.0, 0.0), None),
        (None, (600.0, 600.0), 600.0),
        ("5m", (600.0, 600.0), 300.0),
        (0, (600.0, 600.0), 0.0),
        ("10s", (600.0, 0.0), 10.0),
        (None, (), None),
    ],
)
def test_the_option_counts_before_the_inventory(given: Any, limits: tuple[float, ...], stall: float | None) -> None:
    assert with_stall(options(stall=given), hosts(*limits)).stall == stall


def test_hosts_with_different_limits_are_refused() -> None:
    with pytest.raises(UsageError, match=r"clusterddp_stall of gpu01 is not that of gpu00: a run has one stall guard"):
        with_stall(options(), hosts(600.0, 0.0))


def test_what_follows_a_stall_needs_a_guard() -> None:
    with pytest.raises(UsageError, match=r"--on-stall stop: no stall guard is asked for; give --stall D too"):
        with_stall(options(on_stall="stop"), hosts(0.0))
    assert with_stall(options(on_stall="stop"), hosts(600.0)).on_stall == "stop"


def test_workers_that_say_nothing_are_refused() -> None:
    with pytest.raises(UsageError, match=r"--stall: clusterddp_comm_trace of gpu00 is false"):
        with_stall(options(stall="10m"), hosts(0.0, comm_trace=False))
    with pytest.raises(UsageError, match=r"--stall with --no-comm-trace: nobody can tell"):
        options(stall="10m", no_comm_trace=True)
    assert options(stall=0, no_comm_trace=True).stall == 0.0


def test_a_restart_has_to_be_allowed() -> None:
    with pytest.raises(UsageError, match=r"--on-stall restart: no restart is allowed; give --max-restarts N too"):
        options(stall="10m", on_stall="restart")
    assert options(stall="10m", on_stall="restart", max_restarts=1).on_stall == "restart"


def test_an_old_torch_is_told_once_for_all_hosts() -> None:
    versions = {"gpu00": "2.7.1+cu128", "gpu01": "2.8.0", "gpu02": "2.7.1+cu128", "gpu03": ""}
    said = "the stall guard will find nothing: gpu00, gpu02 has torch 2.7.1+cu128, and it needs 2.8"
    assert blind_notice(options(stall="10m"), versions) == said
    assert blind_notice(options(), versions) == blind_notice(options(stall="10m"), {"gpu01": "2.10.1"}) == ""
