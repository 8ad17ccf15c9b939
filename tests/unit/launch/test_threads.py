"""A worker's share of its host's cores, and what is said of it."""

from __future__ import annotations

from typing import Any

import pytest

from clusterddp.facts.host import Facts
from clusterddp.launch.prepare import with_threads
from tests.unit.facts_made import facts_json
from tests.unit.launch.test_make_plan import node


def facts(host: str, **fields: Any) -> Facts:
    return Facts.from_json(host, facts_json(**{"boot": host, **fields}))


def shares(*told: tuple[int, dict[str, Any]]) -> list[int | None]:
    nodes = [node(member, nproc=nproc) for member, (nproc, _) in enumerate(told)]
    known = {one.host: facts(one.host, **fields) for one, (_, fields) in zip(nodes, told, strict=True)}
    return [one.threads for one in with_threads(nodes, known, {})]


def test_the_workers_of_a_host_share_its_cores() -> None:
    assert shares((2, {"usable_cores": 8}), (1, {"usable_cores": 6}), (3, {"usable_cores": 8})) == [4, 6, 2]


def test_every_worker_has_at_least_one() -> None:
    assert shares((8, {"usable_cores": 2})) == [1]


def test_nodes_of_one_machine_share_its_cores() -> None:
    assert shares((1, {"usable_cores": 8, "boot": "b"}), (3, {"usable_cores": 8, "boot": "b"})) == [2, 2]


@pytest.mark.parametrize(
    ("env", "fields", "said"),
    [
        ({}, {}, "gpu00: OMP_NUM_THREADS=4 (cores that may be used: 8; workers there: 2)"),
        ({}, {"omp_num_threads": "3"}, "gpu00: OMP_NUM_THREADS=3 (by clusterddp_env, a setup line or the host)"),
        ({"OMP_NUM_THREADS": "1"}, {"omp_num_threads": "3"}, "gpu00: OMP_NUM_THREADS=1 (by the command)"),
    ],
)
def test_it_is_said_what_a_worker_gets_and_why(
    env: dict[str, str], fields: dict[str, Any], said: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("DEBUG", "clusterddp")
    one = node(0, nproc=2)
    with_threads([one], {one.host: facts(one.host, usable_cores=8, **fields)}, env)
    assert caplog.messages == [said]
