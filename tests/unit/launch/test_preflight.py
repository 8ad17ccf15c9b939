"""What a run looks at before it starts: which checks those are, whom they refuse, which hosts a smaller run takes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import pytest

from clusterddp.checks.catalog import TABLE
from clusterddp.checks.engine import judge
from clusterddp.checks.evidence import NetworkEvidence
from clusterddp.checks.model import CheckResult
from clusterddp.errors import HelperError, HostsError, PlanError, UsageError
from clusterddp.facts.gpu_assignment import with_taken_gpus
from clusterddp.hosts.fanout import Outcome
from clusterddp.launch import preflight, prepare
from clusterddp.launch.options import RunOptions
from tests.unit.evidence_made import address, failure, health, seen
from tests.unit.facts_made import gpus, interface

if TYPE_CHECKING:
    from collections.abc import Iterable

    from clusterddp.checks.evidence import Evidence
    from clusterddp.checks.model import Finding
    from clusterddp.hosts.client import Host


class MadeHost:
    """A host with made facts."""

    def __init__(self, name: str, **fields: Any) -> None:
        made = seen(name, **fields)
        self.name, self.entry = name, made.entry
        self.told = Outcome(name=name, value=made.facts)


def hosts_of(*made: MadeHost) -> tuple[list[Host], dict[str, Any]]:
    return cast("list[Host]", list(made)), {one.name: one.told for one in made}


def names(**fields: Any) -> set[str]:
    return {check.name for check in preflight.choose_checks(RunOptions(script="t.py", **fields))}


def result(**fields: Any) -> CheckResult:
    return CheckResult(
        **{"name": "torch", "category": "x", "verdict": "fail", "hosts": ("gpu01",), "message": "m", **fields}
    )


def test_every_check_that_needs_no_more_than_a_run_asks_is_made() -> None:
    assert {"torch", "torch-equal", "gpus", "shm", "interface", "network", "ports", "busy-gpus"} <= names()
    assert names() & {"disk", "names", "live-runs", "rehearsal", "connection"} == set()


def test_checks_are_left_out_by_name_by_category_and_altogether() -> None:
    assert names() - names(skip=("torch-equal",)) == {"torch-equal"}
    assert names(skip=("Network",)) & {"network", "ports", "interface"} == set()
    assert names(no_doctor=True) == {"setup", "python"}
    assert {"setup", "python"} <= names(skip=("python", "setup"))  # there would be nothing to start
    with pytest.raises(UsageError, match="'nope' is no check"):
        names(skip=("nope",))


def test_a_failure_is_refused_with_what_helps_and_how_to_go_on() -> None:
    with pytest.raises(PlanError) as error:
        preflight.raise_failures([result(fix="install torch", message="no torch"), result(verdict="warn")])
    assert str(error.value) == "gpu01: no torch; install torch; or go on all the same: --skip torch"
    with pytest.raises(PlanError) as error:
        preflight.raise_failures([result(fix="install torch", message="no torch", final=True)])
    assert str(error.value) == "gpu01: no torch; install torch"
    with pytest.raises(HostsError, match=r"\(and 1 more\)"):
        preflight.raise_failures([result(), result(hosts=("gpu02",))])
    preflight.raise_failures([result(verdict=verdict) for verdict in ("pass", "warn", "unknown", "skipped")])


def test_few_warnings_are_told() -> None:
    told = preflight.warnings_to_show(
        [result(verdict="warn"), result(verdict="warn", name="gpus-equal", message="GPUs: A, B")]
    )
    assert told == ["gpu01: GPUs: A, B"]


def test_a_number_of_workers_on_the_command_line_states_what_is_meant() -> None:
    hosts, facts = hosts_of(MadeHost("gpu01", devices=2, gpus=gpus(2)), MadeHost("gpu02"))
    options = RunOptions(script="t.py")
    found = preflight.results_of(preflight.choose_checks(options), hosts, facts, options)
    assert [one.name for one in found if one.verdict == "fail"] == ["gpus"]
    stated = RunOptions(script="t.py", nproc_per_node=1)
    found = preflight.results_of(preflight.choose_checks(stated), hosts, facts, stated)
    assert [one.name for one in found if one.verdict == "fail"] == []


def used(*indices: int) -> Any:
    return [
        one if one.index not in indices else type(one)(**{**fields_of(one), "processes": (77,), "used_mib": 9000})
        for one in gpus(2)
    ]


def fields_of(one: Any) -> dict[str, Any]:
    return {name: getattr(one, name) for name in one.__slots__}


def test_somebody_elses_process_on_a_gpu_that_the_run_takes_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    from clusterddp.remote.shared.probes.health_records import PortOwner  # noqa: PLC0415

    told = health(owners={77: PortOwner(user="bob", command="python")})
    asked: list[str] = []

    def ask(_need: Any, hosts: Any, _facts: Any) -> list[Any]:
        asked.extend(host.name for host in hosts)
        return [Outcome(name=host.name, value=told) for host in hosts]

    monkeypatch.setattr(preflight, "ask_hosts", ask)
    hosts, facts = hosts_of(MadeHost("gpu01", devices=2, gpus=tuple(used(1))), MadeHost("gpu02", devices=2))
    known = {name: outcome.get() for name, outcome in facts.items()}

    def refused(devices: tuple[str, ...] | None, **fields: Any) -> list[str]:
        options = RunOptions(script="t.py", **fields)
        taken = {"gpu01": devices, "gpu02": None}
        found = preflight.others_on_gpus(hosts, known, taken, options, preflight.choose_checks(options))
        return [one.message for one in found if one.verdict == "fail"]

    assert refused(None) == ["GPU 1 is busy: bob's python (pid 77), 9000 MiB used"]
    assert asked == ["gpu01"]  # the other is not even asked
    assert refused(("1",)) == refused(None)
    hosts[0].entry = replace(hosts[0].entry, gpus=("0",))  # what is asked for on the command line stands above it
    assert refused(("1",)) == refused(None)
    assert refused(("0",)) == refused(None, share_gpus=True) == refused(None, skip=("busy-gpus",)) == []


@pytest.mark.parametrize(
    ("visible", "used_ones"), [(None, [1]), ("0", []), ("1", [1]), ("0, 1", [1]), ("", []), ("MIG-5", [1])]
)
def test_what_others_use_of_gpus_that_the_host_hides_is_no_reason_to_refuse(
    visible: str | None, used_ones: list[int]
) -> None:
    _, told = hosts_of(MadeHost("gpu01", devices=2, gpus=tuple(used(1))))
    facts = replace(told["gpu01"].get(), visible_devices=visible)
    assert [gpu.index for gpu in with_taken_gpus(facts, None).gpus if gpu.processes] == used_ones


def fitting_hosts(
    made: list[MadeHost], monkeypatch: pytest.MonkeyPatch, *failures: Any, **options: Any
) -> tuple[Any, ...]:
    """The names that fit, and what was said."""
    said: list[str] = []
    where = {one.name: interface(address(one.name)) for one in made}
    network = NetworkEvidence(label="x", where=where, failures=failures)
    monkeypatch.setattr(preflight, "survey_network", lambda *_, **__: network)
    hosts, facts = hosts_of(*made)
    wanted = RunOptions(script="t.py", **options)
    found, tried = preflight.fitting_hosts(hosts, facts, wanted, preflight.choose_checks(wanted), said.append)
    assert tried in (None, network)
    return [host.name for host in found], said, tried is not None


def test_a_smaller_run_takes_the_first_that_pass_and_names_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    made = [MadeHost(f"gpu0{number}") for number in range(1, 6)]
    made[0] = MadeHost("gpu01", shm_bytes_free=1 << 20)
    made[2].told = Outcome(name="gpu03", error=HelperError("gpu03", "setup line `false` failed"))
    shut = [failure("gpu02", "gpu04", ranged=False), failure("gpu05", "gpu04", ranged=False)]
    assert fitting_hosts(made, monkeypatch, *shut, nnodes=1) == (
        ["gpu02"],
        [
            "left out: gpu03: setup line `false` failed",
            "left out: gpu01: only 1 MiB are free in /dev/shm",
            "left out: gpu04: gpu02 → gpu04, gpu05 → gpu04 on ephemeral ports: no answer, a firewall drops it",
            "not used: gpu05",
        ],
        False,
    )


def test_too_few_that_pass_are_refused_with_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    made = [MadeHost("gpu01", shm_bytes_free=1 << 20), MadeHost("gpu02")]
    with pytest.raises(PlanError, match="1 of 2 nodes can take part: gpu01: only 1 MiB are free"):
        fitting_hosts(made, monkeypatch, nnodes=2)
    assert fitting_hosts(made, monkeypatch, nnodes=(1, 2))[0] == ["gpu02"]


def test_the_survey_of_just_the_hosts_that_fit_is_handed_on(monkeypatch: pytest.MonkeyPatch) -> None:
    made = [MadeHost("gpu01"), MadeHost("gpu02")]
    assert fitting_hosts(made, monkeypatch, nnodes=(1, 2)) == (["gpu01", "gpu02"], [], True)
    assert fitting_hosts(made, monkeypatch, nnodes=2) == (["gpu01", "gpu02"], [], False)  # no choice, no survey
    assert fitting_hosts(made, monkeypatch, nnodes=1) == (["gpu01"], ["not used: gpu02"], False)
    shut = [failure("gpu01", "gpu03", ranged=False), failure("gpu02", "gpu03", ranged=False)]
    fitting, _, handed_on = fitting_hosts([*made, MadeHost("gpu03")], monkeypatch, *shut, nnodes=(1, 3))
    assert (fitting, handed_on) == (["gpu01", "gpu02"], False)  # it was of three


@pytest.mark.parametrize("known", [1, 0])
def test_the_network_is_tried_once_for_the_same_hosts(monkeypatch: pytest.MonkeyPatch, known: int) -> None:
    network, asked = NetworkEvidence(label="x", where={}), []

    def survey(*_: Any, **__: Any) -> NetworkEvidence:
        asked.append(1)
        return network

    monkeypatch.setattr(prepare, "survey_network", survey)
    monkeypatch.setattr(prepare, "provide_code", lambda *_, **__: None)
    more = dict.fromkeys(("notify", "project", "tree", "workdir", "dry"))
    prep: Any = SimpleNamespace(
        hosts=[], facts={}, options=RunOptions(script="t.py"), progress=str, tried=network if known else None, **more
    )
    prepare.bring_code(prep)
    assert prep.survey is network
    assert known + len(asked) == 1


def test_the_gpus_that_a_run_names_are_judged_instead_of_the_inventorys() -> None:
    hidden = {"devices": 2, "gpus": gpus(4, machine="gpu01"), "pci_nvidia": 4, "visible_devices": "0,1"}
    hosts, facts = hosts_of(MadeHost("gpu01", entry={"gpus": ("2", "3")}, **hidden))
    options = RunOptions(script="t.py")
    checks = [check for check in preflight.choose_checks(options) if check.name == "gpus"]
    (found,) = preflight.results_of(checks, hosts, facts, options)
    assert found.message == "clusterddp_gpus names GPU 2, but the host has: 0, 1"
    (found,) = preflight.results_of(checks, hosts, facts, replace(options, gpus="0,1"))
    assert found.verdict == "pass"


def test_the_preflight_is_quick_for_many_hosts() -> None:
    import time  # noqa: PLC0415

    hosts, facts = hosts_of(*(MadeHost(f"gpu{number:02}") for number in range(64)))
    options = RunOptions(script="t.py")
    checks = preflight.choose_checks(options)
    where = {host.name: interface(address(host.name)) for host in hosts}
    began = time.process_time()
    preflight.results_of(checks, hosts, facts, options)
    preflight.results_of(checks, hosts, facts, options, NetworkEvidence(label="x", where=where))
    assert time.process_time() - began < 1.0


def test_the_checks_it_always_makes_are_in_the_table() -> None:
    known = {check.name for check in TABLE}
    assert {*preflight.ESSENTIAL, *preflight.SHOWN_WARNINGS} <= known
    assert judge(preflight.evidence([]), preflight.choose_checks(RunOptions(script="t.py"))) == []


def test_a_check_that_raises_refuses_no_host_and_leaves_a_crash_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(_: Evidence) -> Iterable[Finding]:
        raise ZeroDivisionError("a bug in the check")

    (tmp_path / "project/.git").mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "project")
    hosts, facts = hosts_of(MadeHost("gpu01"))
    options = RunOptions(script="t.py")
    table = [replace(check, judge=broken) if check.name == "python" else check for check in TABLE]
    checks = [check for check in table if check.name == "python"]
    (result,) = preflight.results_of(checks, hosts, facts, options)
    assert (result.verdict, result.hosts) == ("unknown", ("gpu01",))
    (path,) = Path(".clusterddp/crashes").glob("*.txt")
    assert "ZeroDivisionError: a bug in the check" in path.read_text()
    assert "the check python" in path.read_text()
