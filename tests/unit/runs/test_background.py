"""What is repeated for each host while a run is followed: renewals of its lease, and attempts to join late hosts."""

from __future__ import annotations

import queue
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest

from clusterddp.errors import HostsError, PlanError, UnreachableError
from clusterddp.remote.shared.run.run_record import RunRecord
from clusterddp.runs import background
from clusterddp.runs.background import join_late_hosts, lease_renewal

LIMIT = 60.0  # seconds for what happens at once


@dataclass
class Run:
    """A fake run: ``told`` are each host's answers to ``renew``, ``views`` those of ``view``; exceptions are raised."""

    record: RunRecord  # of its hosts and spares
    told: dict[str, list[bool | Exception]] = field(default_factory=dict)
    views: list[Any] = field(default_factory=list)
    id: str = "k3xa8w2mnp"
    attempt: int = 1
    renewed: queue.Queue[str] = field(default_factory=queue.Queue)

    @property
    def spools(self) -> dict[str, str]:
        return dict.fromkeys(self.record.hosts, "/spool")

    def reader(self, host: str) -> Any:
        def call(_operation: str, args: dict[str, Any], **_: object) -> dict[str, bool]:
            assert args == {"run": self.id, "host": host}
            self.renewed.put(host)
            answer = self.told[host].pop(0)
            if isinstance(answer, Exception):
                raise answer
            return {"renewed": answer}

        return SimpleNamespace(name=host, call=call)

    def view(self, **_: object) -> Any:
        view = self.views.pop(0)
        if isinstance(view, Exception):
            raise view
        return view

    def at(self, view: Any) -> Run:
        return Run(self.record, attempt=view.attempt)


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(background, "RENEWAL_INTERVAL", 0.01)
    monkeypatch.setattr(background, "JOIN_INTERVAL", 0.01)


@pytest.mark.parametrize(("hosts", "spares"), [(("gpu00",), ()), ((), ("gpu00",))])
def test_a_host_and_a_spare_hear_of_the_operator_until_the_run_has_ended(
    hosts: tuple[str, ...], spares: tuple[str, ...]
) -> None:
    record = RunRecord(hosts=hosts, spares=spares, on_disconnect="stop")
    run: Any = Run(record, {"gpu00": [True, UnreachableError("gpu00", "no answer"), False, False]})
    # nobody else answers; it goes on elsewhere; it does not
    over = SimpleNamespace(live=False, current={})
    run.views = [over, SimpleNamespace(live=True, current={"gpu00": "/spool"}), over]
    with lease_renewal(run):
        assert [run.renewed.get(timeout=LIMIT) for _ in range(4)] == ["gpu00"] * 4


@pytest.mark.parametrize("first", [[False], [UnreachableError("gpu00", "no answer")]])  # drained; without power
def test_the_hosts_that_a_relaunch_was_given_in_place_of_others_hear_of_the_operator(first: list[Any]) -> None:
    """Slurm starts a requeued job on other nodes: they heard of nobody, and ended the run a minute later."""
    silent = UnreachableError("gpu08", "no answer")
    told: Any = {"gpu00": first * 2, "gpu08": [silent], "gpu09": [True]}
    run: Any = Run(RunRecord(hosts=("gpu00",), on_disconnect="stop"), told)
    moved: Any = SimpleNamespace(live=True, current={"gpu08": "/spool", "gpu09": "/spool"})
    run.views = [moved, SimpleNamespace(live=False, current={})]
    with lease_renewal(run):
        heard = {run.renewed.get(timeout=LIMIT)}
        while "gpu09" not in heard:
            heard.add(run.renewed.get(timeout=LIMIT))
    assert heard <= {"gpu00", "gpu08", "gpu09"}


def test_a_run_that_outlives_its_terminal_renews_nothing() -> None:
    run: Any = Run(RunRecord(hosts=("gpu00",), on_disconnect="keep"))
    with lease_renewal(run):
        assert run.renewed.empty()


def test_a_late_host_joins_the_attempt_that_the_run_is_in_then() -> None:
    run: Any = Run(RunRecord(hosts=("gpu00",), left_out=("gpu01",)))
    run.views = [HostsError([UnreachableError("gpu00", "no answer")]), SimpleNamespace(attempt=2)]
    joined: queue.Queue[tuple[int, list[str]]] = queue.Queue()
    told: queue.Queue[str] = queue.Queue()
    with join_late_hosts(run, lambda newest, hosts: joined.put((newest.attempt, list(hosts))), told.put):
        assert joined.get(timeout=LIMIT) == (2, ["gpu01"])
        assert told.get(timeout=LIMIT) == "gpu01 joins"


def test_a_late_host_that_cannot_join_is_said_once() -> None:
    run: Any = Run(RunRecord(hosts=("gpu00",), left_out=("gpu01",)))
    run.views = [SimpleNamespace(attempt=1)]
    told: queue.Queue[str] = queue.Queue()

    def refuse(*_: object) -> None:
        raise PlanError("the run is full")

    with join_late_hosts(run, refuse, told.put):
        assert told.get(timeout=LIMIT) == "gpu01 cannot join: the run is full"
