"""The doctor's rehearsal on real hosts: a job over all of them that leaves nothing, and how far it came with a fault.

Judgements over made values: tests/unit/checks/test_rehearsal.py.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.integration.cli import LIMIT, User, nothing_left
from tests.integration.doctor.test_doctor import no_new_ephemeral
from tests.integration.doctor_cli import Named, named
from tests.lab.system import wait_until
from tests.lean import training_python
from tests.own_lab import own_lab

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.lab import Lab
    from tests.lab.host import LabHost

pytestmark = pytest.mark.lab
SICK = "gpu01"


@pytest.fixture(scope="module")
def pair() -> Iterator[Lab]:
    """Two hosts of our own."""
    with own_lab(2, variables={"clusterddp_python": training_python()}) as lab:
        yield lab


@pytest.fixture(scope="module")
def user(pair: Lab, tmp_path_factory: pytest.TempPathFactory) -> User:
    made = User(tmp_path_factory.mktemp("user"))
    made.up(pair.inventory)
    return made


def rehearsed(lab: Lab, user: User, *words: str) -> tuple[int, list[Named]]:
    """The exit code and what is wrong; nothing of the rehearsal is left on any host."""
    with nothing_left(lab):
        found = named(user, "--only", "rehearsal", *words)
    for host in lab.hosts:
        left = host.run(["sh", "-c", "ls .clusterddp/runs .clusterddp/rundirs clusterddp 2>/dev/null; true"]).stdout
        assert left.replace(".clusterddp/runs:\n", "") == ""
    return found


def begun_on(host: LabHost) -> Callable[[], bool]:
    return lambda: bool(host.leftovers("rehearse.py"))


def test_a_clean_pair_comes_through_and_keeps_nothing(pair: Lab, user: User) -> None:
    assert rehearsed(pair, user) == (0, [])
    assert user.run("runs", "--all").code == 0
    assert user.run("runs", "--all", "--json").json == []


def test_a_card_that_is_not_there_is_named_at_the_stage_that_needs_it(pair: Lab, user: User) -> None:
    wrong = {SICK: {"clusterddp_env": {"GLOO_SOCKET_IFNAME": "ib9"}}}
    path = pair.write_inventory(user.folder / "wrong.yaml", more=wrong)
    code, ((name, verdict, hosts, message),) = rehearsed(pair, user, "-i", str(path), "--skip", "interface")
    assert (code, name, verdict, hosts) == (1, "rehearsal", "fail", (SICK,))
    assert f"{SICK} came to 'import torch', not to 'process group'" in message
    assert "Unable to find address for: ib9" in message
    code, found = rehearsed(pair, user, "-i", str(path))
    assert [one[0] for one in found] == ["interface"]  # the cause is told once, and nothing is started for it


def test_ctrl_c_ends_it_on_every_host_with_its_proof(pair: Lab, user: User) -> None:
    with nothing_left(pair), user.start("doctor", "--only", "rehearsal") as live:
        for host in pair.hosts:
            wait_until(f"it has begun on {host.name}", begun_on(host), LIMIT)
        live.interrupt()
        done = live.end()
    assert done.code == 130, done.err
    proofs = [note for note in done.notes if note.endswith("proved empty")]
    assert [host.name in note for host, note in zip(pair.hosts, proofs, strict=True)] == [True, True]
    assert user.run("runs", "--all", "--json").json == []


def test_shut_ephemeral_ports_stop_it_at_the_process_group(pair: Lab, user: User) -> None:
    with no_new_ephemeral(pair.host("gpu00")), no_new_ephemeral(pair.host(SICK)):
        code, ((name, verdict, hosts, message),) = rehearsed(pair, user, "--skip", "network")
    assert (code, name, verdict) == (1, "rehearsal", "fail")
    assert hosts  # either may see it first
    assert "not to 'process group'" in message
