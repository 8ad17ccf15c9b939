"""What `why` says of a live run of which not all hosts were asked, as with --limit."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from clusterddp.remote.shared.collectives.hang_judge import HUNG, MISSING, UNDECIDED
from clusterddp.runs import why
from clusterddp.runs.view.run_view import RunView
from clusterddp.runs.why import Look, Why, explain
from tests.unit.remote.shared.collectives.evidence_made import in_operation, trace
from tests.unit.runs_told import Told

if TYPE_CHECKING:
    from collections.abc import Sequence

    import pytest

    from clusterddp.remote.shared.collectives.trace_records import WorkerTrace


def explained(monkeypatch: pytest.MonkeyPatch, traces: Sequence[WorkerTrace], *hosts: str) -> Why:
    """The answer for a run of two ranks each on ``hosts``, of which only the first says what its workers do."""
    monkeypatch.setattr(why, "PAUSE", 0.0)
    monkeypatch.setattr(why, "look", lambda _: Look({"gpu00": traces}, []))
    monkeypatch.setattr(why, "take_stacks", lambda *_: [])
    view = RunView(run="r1", nodes=(Told(workers=2, hosts=list(hosts), world_size=2 * len(hosts)).node,))
    run: Any = SimpleNamespace(id="r1", view=lambda **_: view, at=lambda _: run)
    return explain(run, view)


def test_ranks_of_hosts_that_were_not_asked_are_not_blamed(monkeypatch: pytest.MonkeyPatch) -> None:
    found = explained(monkeypatch, [in_operation(0), in_operation(1)], "gpu00", "gpu01", "gpu02")
    assert (found.state, found.kind, found.ranks, found.remedy) == (UNDECIDED, UNDECIDED, (), None)
    assert found.sentence.startswith("run r1: it is not known for whom ranks 0-1 wait")
    assert "gpu01, gpu02 were not asked" in found.evidence


def test_a_rank_that_was_seen_is_blamed_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    found = explained(monkeypatch, [in_operation(0), trace(1)], "gpu00", "gpu01")
    assert (found.kind, found.ranks) == (MISSING, (1,))
    assert "gpu01 was not asked" in found.evidence


def test_of_a_run_whose_hosts_all_were_asked_it_is_not_said(monkeypatch: pytest.MonkeyPatch) -> None:
    found = explained(monkeypatch, [in_operation(0), trace(1)], "gpu00")
    assert (found.state, found.kind, found.ranks) == (HUNG, MISSING, (1,))
    assert not [line for line in found.evidence if "asked" in line]
