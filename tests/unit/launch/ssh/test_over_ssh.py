"""What is said of the hosts' answers to a start or a stop over SSH."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from clusterddp.launch.ssh.over_ssh import LAUNCHER, _plain_start_notices


def test_why_starts_are_not_warm_is_one_line_for_hosts_of_the_same_reason() -> None:
    path = "PATH is another"
    reasons = {"gpu00": path, "gpu01": path, "gpu02": path, "gpu03": "it is of another version"}
    assert list(_plain_start_notices(reasons)) == [
        "gpu[00:02]: not from the warm server: PATH is another",
        "gpu03: not from the warm server: it is of another version",
    ]
    assert list(_plain_start_notices({})) == []


def test_a_reason_without_end_is_cut() -> None:
    (line,) = _plain_start_notices({"gpu00": "x" * 100_000})
    assert len(line) < 400


def test_a_host_to_stop_that_the_inventory_lacks_is_named() -> None:
    site: Any = SimpleNamespace(inventory=SimpleNamespace(hosts=()))
    (proof,) = LAUNCHER.cancel(site, "abcdefghij", ["gpu09"], grace=1.0, reason="x")
    assert (proof.host, proof.error) == ("gpu09", "gpu09: not in the inventory (-i FILE chooses one that has it)")
