"""`doctor --bench` on real hosts: nothing is said of equal ones, the one with a fault is named alone."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.integration.cli import User
from tests.own_lab import own_lab

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.lab import Lab

pytestmark = pytest.mark.lab
SICK = "gpu01"


@pytest.fixture(scope="module")
def three() -> Iterator[Lab]:
    with own_lab(3) as lab:
        yield lab


@pytest.fixture(scope="module")
def user(three: Lab, tmp_path_factory: pytest.TempPathFactory) -> User:
    made = User(tmp_path_factory.mktemp("user"))
    made.up(three.inventory)
    return made


def named(user: User, only: str) -> list[tuple[str, str, tuple[str, ...], str]]:
    """What is wrong."""
    checks = user.run("doctor", "--bench", "--only", only, "--json").json["checks"]
    found = [one for one in checks if one["verdict"] not in ("pass", "skipped")]
    return [(one["name"], one["verdict"], tuple(one["hosts"]), one["message"]) for one in found]


def test_a_slow_host_is_named_alone_by_the_bandwidth_of_its_pairs(three: Lab, user: User) -> None:
    assert named(user, "bandwidth") == []
    three.host(SICK).rate("100mbit")
    ((name, verdict, hosts, message),) = named(user, "bandwidth")
    three.host(SICK).heal()
    assert (name, verdict, hosts) == ("bandwidth", "warn", (SICK,))
    assert message.startswith("sends and receives 9")
    assert named(user, "bandwidth") == []


def test_the_table_shows_every_pair(three: Lab, user: User) -> None:
    done = user.run("doctor", "--bench", "--only", "bandwidth")
    assert done.code == 0
    head, *rows = [line.split() for line in done.lines[-1 - len(three.hosts) :]]
    assert head == [host.name for host in three.hosts]
    for place, (host, row) in enumerate(zip(three.hosts, rows, strict=True)):
        assert row[0] == host.name
        assert row[1 + place] == "X"
        assert all(float(cell) > 0 for cell in row[1:] if cell != "X")


def test_it_refuses_beside_a_live_run(three: Lab, user: User) -> None:
    user.write("sleeper.py", "import time\ntime.sleep(600)\n")
    run = user.run("run", "--detach", "--nproc-per-node", "1", "sleeper.py").out.strip()
    done = user.run("doctor", "--bench", "--only", "bandwidth", "--json")
    assert user.run("stop", run).code == 0
    assert done.code == 1
    told = {one["name"]: one for one in done.json["checks"] if one["verdict"] in ("fail", "skipped")}
    assert f"run {run} of " in told["idle"]["message"]
    assert told["bandwidth"]["message"] == "because of idle"
    assert len(told["idle"]["hosts"]) == len(three.hosts)
    assert done.json["bench"]["pairs"] == []
