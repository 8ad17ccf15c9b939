"""The doctor's check of environments of a lock."""

from __future__ import annotations

from clusterddp.checks.catalog.software import LOCKED, LOCKED_ENVIRONMENT
from clusterddp.checks.engine import judge
from clusterddp.checks.evidence import Answer, Evidence, HostEvidence
from clusterddp.inventory import HostEntry
from clusterddp.remote.shared.environment.environment_records import EnvironmentProof

WHOLE = EnvironmentProof(path="/s/environments/abc", there=True, built="d", now="d")


def said(
    *told: EnvironmentProof | None, environment: str | None = "uv.lock[gpu]"
) -> list[tuple[str, tuple[str, ...], str]]:
    hosts = tuple(
        HostEvidence(
            entry=HostEntry(name=f"gpu{number}", address="x", environment=environment),
            answers={} if one is None else {LOCKED.name: Answer(value=one)},
        )
        for number, one in enumerate(told)
    )
    return [(one.verdict, one.hosts, one.message) for one in judge(Evidence(hosts=hosts), [LOCKED_ENVIRONMENT])]


def test_hosts_with_the_same_whole_environment_pass() -> None:
    assert [verdict for verdict, _, _ in said(WHOLE, WHOLE, WHOLE)] == ["pass"]
    assert [verdict for verdict, _, _ in said(None, None, environment=None)] == ["pass"]


def test_what_is_not_built_changed_or_different_is_named() -> None:
    missing, changed = WHOLE._replace(there=False), WHOLE._replace(now="e")
    other = WHOLE._replace(built="e", now="e")
    assert [one for one in said(WHOLE, WHOLE, missing, changed, other) if one[0] != "pass"] == [
        ("fail", ("gpu2",), "the environment of uv.lock[gpu] is not built"),
        ("fail", ("gpu3",), "packages were changed in the environment of uv.lock[gpu] since it was built"),
        ("fail", ("gpu4",), "its environment is not what the others have of the same lock"),
    ]
    assert said(WHOLE, None)[0][0] == "unknown"
    elsewhere = other._replace(path="/s/environments/other")  # another lock, or another kind of host
    assert [verdict for verdict, _, _ in said(WHOLE, elsewhere)] == ["pass"]


def test_the_remedy_names_one_folder_whatever_a_host_says_where_it_lies() -> None:
    told = Answer(value=WHOLE._replace(path="/s/a; rm -r ~", now="e"))
    seen = HostEvidence(entry=HostEntry(name="gpu0", address="x", environment="uv.lock"), answers={LOCKED.name: told})
    (found,) = judge(Evidence(hosts=(seen,)), [LOCKED_ENVIRONMENT])
    assert found.fix.startswith("`rm -r '/s/a; rm -r ~'` on the host, then")
