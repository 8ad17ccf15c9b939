"""Hosts that join a run: what they are started with, and who lets them in."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from clusterddp.environments import install
from clusterddp.errors import HelperError, PlanError, RunError
from clusterddp.inventory import HostEntry
from clusterddp.launch.ssh import join
from clusterddp.remote.shared.run.spool_records import Ready
from clusterddp.remote.shared.supervisor.start_records import Claimed, ClaimRequest, Invitation
from tests.unit.plan_made import PLAN

if TYPE_CHECKING:
    from clusterddp.remote.shared.run.plan import NodePlan


def joined(
    monkeypatch: pytest.MonkeyPatch,
    most: int = 2,
    lost: tuple[str, ...] = (),
    error: Exception | None = None,
    claims: list[ClaimRequest] | None = None,
    **options: object,
) -> NodePlan:
    """The plan that a host gets which joins a run started with these options; ``error``: why it does not start."""
    settings = PLAN.settings._replace(elastic=True, min_nodes=1, max_nodes=most)
    record = PLAN.record._replace(options=options, nproc=1, code="")
    plan = PLAN._replace(settings=settings, record=record)
    ready = Ready(store=1, peers=(("10.0.0.1", 2),))
    invited = Invitation(plan=plan, ready=ready, key="k", secrets={}, lost=lost)
    facts = SimpleNamespace(
        python="/p", clock_offset_ns=0, clock_error_ns=0, boot="b", usable_cores=4, omp_num_threads=None
    )
    host: Any = SimpleNamespace(
        name="gpu01", entry=HostEntry(name="gpu01", address="gpu01"), hello=SimpleNamespace(state="/s")
    )
    started: list[NodePlan] = []

    def start(_host: object, plan: NodePlan, *_: object) -> tuple[str, int]:
        started.append(plan)
        if error:
            raise error
        return "/s/spool", 3

    checked = ({"gpu01": facts}, {"gpu01": None}, {"gpu01": ("eth0", "10.0.0.2")})
    monkeypatch.setattr(join, "invitation", lambda *_: invited)
    monkeypatch.setattr(join, "_check_hosts", lambda *_: checked)
    monkeypatch.setattr(join, "_sync_same_code", lambda *_: {"gpu01": "/w"})

    def claim(_guide: object, _operation: str, request: ClaimRequest, _kind: object) -> Claimed:
        if claims is not None:
            claims.append(request)
        return Claimed(claimed=True)

    monkeypatch.setattr(join, "ask", claim)
    monkeypatch.setattr(install, "with_source", lambda node, *_: node)
    monkeypatch.setattr(join, "_start_and_commit", start)
    guide: Any = SimpleNamespace(name="gpu00")
    project: Any = SimpleNamespace(subfolder="")
    join.join(guide, "/s/0", [host], project, print)
    return started[0]


def test_a_host_that_joins_starts_its_workers_plainly_if_the_run_does(monkeypatch: pytest.MonkeyPatch) -> None:
    assert joined(monkeypatch).host_settings.fork_server
    assert not joined(monkeypatch, no_fork_server=True).host_settings.fork_server


def test_a_lost_host_leaves_its_place_to_another_one(monkeypatch: pytest.MonkeyPatch) -> None:
    (peer,) = PLAN.peers
    with pytest.raises(PlanError, match="has no room for gpu01: it has 1 of 1 node"):
        joined(monkeypatch, most=1)
    assert joined(monkeypatch, most=1, lost=(peer.host,)).member == 1


def test_a_host_that_does_not_start_leaves_its_place_to_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    claims: list[ClaimRequest] = []
    with pytest.raises(HelperError):
        joined(monkeypatch, error=HelperError("gpu01", "a setup line failed"), claims=claims)
    assert [(claim.member, claim.release) for claim in claims] == [(1, False), (1, True)]


RUN: Any = SimpleNamespace(
    id="abcdefghij",
    record=SimpleNamespace(launcher="ssh"),
    spools={"gpu00": "", "gpu01": ""},
    attempts={1: {"gpu00": "", "gpu01": "", "gpu02": ""}},
)


@pytest.mark.parametrize("name", ["gpu01", "gpu02"])
def test_a_host_that_is_or_was_in_the_run_cannot_join_it_again(name: str) -> None:
    site: Any = SimpleNamespace()
    with pytest.raises(RunError, match=f"{name} cannot join run abcdefghij again; one that was lost"):
        join.join_from_inventory(site, RUN, [name], ())


def test_where_all_that_answer_are_or_were_in_the_run_nobody_joins() -> None:
    entries = [HostEntry(name=name, address=name) for name in ("gpu00", "gpu01", "gpu02")]
    connections = SimpleNamespace(open_all=lambda hosts, *_, **__: hosts)
    site: Any = SimpleNamespace(
        inventory=SimpleNamespace(nodes=entries), connections=connections, progress=print, notify=print
    )
    with pytest.raises(RunError, match="no host can join run abcdefghij: all that answer are or were in it; one that"):
        join.join_from_inventory(site, RUN, None, ())


def test_where_no_host_of_the_run_answers_nobody_can_let_others_in(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(join, "_open_free_nodes", lambda *_: [SimpleNamespace(name="gpu03")])
    site: Any = SimpleNamespace()
    with pytest.raises(RunError, match="no host of run abcdefghij answers"):
        join.join_from_inventory(site, RUN, None, ())


def guide(monkeypatch: pytest.MonkeyPatch, leader: str | None, **spools: str) -> tuple[Any, str]:
    """Who lets others in: its name and spool, where ``spools`` are those of the run's hosts that were asked."""
    monkeypatch.setattr(join, "invitation", lambda *_: SimpleNamespace(leader=leader))
    entries = [HostEntry(name=name, address=name) for name in ("gpu00", "gpu01")]
    site: Any = SimpleNamespace(inventory=SimpleNamespace(run_hosts=entries), host=lambda name: name)
    run: Any = SimpleNamespace(id=RUN.id, spools=spools)
    return join._find_guide(site, run)


def test_the_leader_lets_others_in_so_that_two_at_once_get_two_places(monkeypatch: pytest.MonkeyPatch) -> None:
    assert guide(monkeypatch, "gpu01", gpu00="/0", gpu01="/1") == ("gpu01", "/1")
    assert guide(monkeypatch, "gpu01", gpu00="/0", gpu01="") == ("gpu00", "/0")  # it does not answer
    assert guide(monkeypatch, None, gpu00="", gpu01="/1") == ("gpu01", "/1")  # there is none
    with pytest.raises(RunError, match=f"gpu02 leads run {RUN.id}, and lets others in; .* choose it too, by --limit"):
        guide(monkeypatch, "gpu02", gpu00="/0", gpu01="/1")
