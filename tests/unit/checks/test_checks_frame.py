"""The doctor's frame: which checks are run, how results are joined, what the page and known messages say of them."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from clusterddp.checks.catalog import TABLE
from clusterddp.checks.engine import judge, select
from clusterddp.checks.evidence import Answer, Evidence, HostEvidence
from clusterddp.checks.model import Check, Finding, Need, fail, for_each, worst
from clusterddp.checks.needs import HEALTH
from clusterddp.doctor.explain import explain
from clusterddp.errors import HelperError, UnreachableError, UsageError
from clusterddp.remote.helper.operations import TABLE as OPERATIONS
from clusterddp.runs.view.known_messages import TABLE as MESSAGES
from tests.unit.anything import HOSTS, Anything, fields_of
from tests.unit.evidence_made import cluster, health, judged, seen, with_answers

if TYPE_CHECKING:
    from collections.abc import Iterable

    from clusterddp.inventory import HostEntry

PAGE = Path(__file__).parents[3] / "docs" / "checks.md"
NAMES = [check.name for check in TABLE]


def test_names_are_unique_and_causes_stand_above() -> None:
    assert len(set(NAMES)) == len(NAMES)
    assert not set(NAMES) & {check.category for check in TABLE}
    for place, check in enumerate(TABLE):
        assert set(check.after) <= set(NAMES[:place]), check.name
        assert not check.needs or place >= NAMES.index("setup"), check.name
        assert check.title
        assert "\n" not in check.title + check.symptom + check.fix


def test_every_need_has_a_name_of_its_own_and_what_is_asked_is_an_operation() -> None:
    needed = {need for check in TABLE for need in check.needs}
    assert len({need.name for need in needed}) == len(needed)
    assert {need.operation for need in needed if need.operation} <= set(OPERATIONS)


def test_the_page_shows_the_table() -> None:
    shown = [f"| {check.name} | {check.category} | {check.title} |" for check in TABLE]
    lines = PAGE.read_text(encoding="utf-8").split("## Not there yet")[0].splitlines()
    assert [line for line in lines if line.startswith("| ") and not line.startswith("| name ")] == shown


def test_known_messages_name_checks_that_are_there_or_said_not_to_be() -> None:
    missing = PAGE.read_text(encoding="utf-8").split("## Not there yet")[1]
    later = set(re.findall(r"`([a-z-]+)`", missing))
    assert {row.check for row in MESSAGES if row.check} <= {*NAMES, *later}
    assert not later & set(NAMES)


def test_only_takes_names_and_categories_and_what_explains_them() -> None:
    assert [check.name for check in select(only=["shm"])] == ["connection", "host-keys", "helper", "setup", "shm"]
    assert {check.name for check in select(only=["Storage"])} >= {"disk", "mounts", "connection"}
    assert "disk" not in {check.name for check in select(skip=["Storage"])}
    assert select(only=["SHM", "ssh"], skip=["storage"]) == select(only=["shm", "SSH"], skip=["Storage"])
    assert len(select(skip=["shm"], bench=True, launchers=["slurm"])) == len(TABLE) - 1


def test_what_is_measured_is_only_run_for_a_bench() -> None:
    assert {check.name for check in TABLE} - {check.name for check in select()} >= {"idle", "bandwidth"}
    for word in ("bandwidth", "Performance"):
        assert "bandwidth" in {check.name for check in select(only=[word], bench=True)}
        with pytest.raises(UsageError, match="is measured with `doctor --bench` only"):
            select(only=[word])


@pytest.mark.parametrize("names", [{"only": ["smh"]}, {"skip": ["smh"]}])
def test_a_name_that_is_none_is_refused(names: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match="'smh' is no check"):
        select(**names)


def test_a_failure_is_unknown_below_where_its_own_check_is_skipped() -> None:
    lost = HostEvidence(entry=seen("gpu02").entry, error=UnreachableError("gpu02", "no answer"))
    results = judge(cluster(lost), select(only=["shm"], skip=["connection"]))
    (result,) = [result for result in results if result.verdict == "unknown" and result.name == "shm"]
    assert result.message == "could not look: gpu02: no answer"
    assert worst(results) == "unknown"


def test_what_a_failure_explains_is_skipped_and_says_so() -> None:
    lost = HostEvidence(entry=seen("gpu02").entry, error=UnreachableError("gpu02", "no answer"))
    results = judge(cluster(lost), select(only=["shm"]))
    assert [
        (result.name, result.verdict, result.hosts) for result in results if result.name in ("connection", "shm")
    ] == [
        ("connection", "fail", ("gpu02",)),
        ("connection", "pass", ("gpu01", "gpu03")),
        ("shm", "skipped", ("gpu02",)),
        ("shm", "pass", ("gpu01", "gpu03")),
    ]
    assert worst(results) == "fail"


def test_every_host_stands_in_every_checks_result() -> None:
    lost = HostEvidence(entry=seen("gpu02").entry, error=HelperError("gpu02", "no python3 on the host"))
    results = judge(cluster(lost), select(bench=True, launchers=["slurm"]))
    for check in TABLE:
        hosts = {host for result in results if result.name == check.name for host in result.hosts}
        assert hosts == {"gpu01", "gpu02", "gpu03"}, check.name


def test_json_is_the_contracts() -> None:
    (first, *_) = judge(cluster(), select())
    assert first.to_json() == {
        "name": "connection",
        "category": "SSH",
        "verdict": "pass",
        "hosts": ["gpu01", "gpu02", "gpu03"],
        "message": "every host is reached by SSH",
        "symptom": "",
        "fix": "",
        "playbook": "",
    }


def test_a_log_is_explained_by_its_known_messages() -> None:
    lines = ["step 1", "OSError: [Errno 28] No space left on device", "x", "No space left on device", "Bus error."]
    (found,) = explain(lines)
    assert (found.known.name, found.count, found.line) == ("disk-full", 2, 2)
    assert found.to_json()["check"] == "disk"
    assert explain(["all is well"]) == []


@pytest.mark.parametrize("seed", range(20))
def test_no_check_raises_whatever_is_true(seed: int) -> None:
    for number in range(10):
        results = judged(Anything(10 * seed + number).evidence(), select(bench=True, launchers=["slurm"]))
        for check in TABLE:
            own = [result for result in results if result.name == check.name]
            assert {host for result in own for host in result.hosts} == set(HOSTS), check.name
        for result in results:
            assert result.verdict != "pass" or result.message
            assert (result.verdict in ("fail", "warn")) == bool(result.fix or result.symptom), result


def test_a_check_that_raises_is_unknown_and_the_others_stand() -> None:
    def broken(_: Evidence) -> Iterable[Finding]:
        yield fail("gpu01", "half of it was said")
        raise ZeroDivisionError("a bug")

    table = [replace(check, judge=broken) if check.name == "shm" else check for check in select()]
    results = judge(cluster(), table)
    (own,) = [result for result in results if result.name == "shm"]
    assert (own.verdict, own.hosts, own.message) == (
        "unknown",
        ("gpu01", "gpu02", "gpu03"),
        "internal error in shm",
    )
    assert isinstance(own.bug, ZeroDivisionError)
    assert not [result for result in results if result.bug and result is not own]
    assert [result for result in results if result.name != "shm"] == [
        result for result in judge(cluster(), select()) if result.name != "shm"
    ]


def test_a_need_is_told_missing_by_its_own_entry_alone() -> None:
    own: Need[int] = Need(name="own", operation="own")
    check = Check(name="new", category="Machines", title="all is new", judge=for_each(own, odd), needs=(own,))
    one, two, three = cluster().hosts
    evidence = cluster(with_answers(one, {own: 2}), with_answers(two, {own: 3}), three)
    evidence = replace(evidence, hosts=(*evidence.hosts[:2], with_answers(three, {own: Answer(error="no answer")})))
    assert [(one.verdict, one.hosts, one.message) for one in judge(evidence, [check])] == [
        ("fail", ("gpu02",), "3 is odd"),
        ("unknown", ("gpu03",), "could not look: no answer"),
        ("pass", ("gpu01",), "all is new"),
    ]


def odd(entry: HostEntry, number: int) -> Finding | None:
    return fail(entry.name, f"{number} is odd") if number % 2 else None


def test_anything_holds_every_field_of_the_evidence_filled() -> None:
    made = [Anything(seed).evidence() for seed in range(200)]
    seen = [host for evidence in made for host in evidence.hosts]
    facts, healths = [one.facts for one in seen if one.facts], [told for one in made for _, told in HEALTH.each(one)]
    for values in (made, seen, facts, healths):
        for name in fields_of(type(values[0])):
            assert any(getattr(value, name) for value in values), name


def test_no_host_at_all_is_no_finding() -> None:
    assert judge(Evidence(hosts=()), select()) == []
    assert health().limits
    assert isinstance(TABLE[0], Check)
