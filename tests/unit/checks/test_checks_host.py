"""The doctor's checks of a host's limits, login, folders and packages, over made evidence."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from clusterddp.checks.catalog.machine import STRAY_RANKS
from clusterddp.checks.engine import judge, select
from clusterddp.checks.evidence import Answer, Evidence, RunEvidence
from clusterddp.checks.needs import RUNS, SHARED
from clusterddp.errors import HelperError
from clusterddp.facts.host import TorchFacts
from clusterddp.remote.shared.probes.health_records import Cgroup, LoginPython, Write
from clusterddp.remote.shared.probes.torchrun_records import StrayRank
from tests.unit.evidence_made import ComparedName, cluster, comparisons, folder, said, seen, with_answers, wrong
from tests.unit.facts_made import interface

NAMES = ("gpu01", "gpu02", "gpu03")
TORCH = TorchFacts(version="2.7.0", cuda="12.8", nccl="2.26.2", nccl_loaded="2.26.2", gloo=True, nccl_available=True)
MIB, GIB = 1 << 20, 1 << 30


def changed(**fields: Any) -> Evidence:
    """A cluster whose second host differs."""
    return cluster(seen("gpu02", *NAMES, **fields))


def unhealthy(**fields: Any) -> Evidence:
    return changed(health=fields)


# (what gpu02's health is, what is said of it)
HEALTH: list[tuple[dict[str, Any], str, str, str]] = [
    ({"cgroup": Cgroup(cpu_thousandths=500)}, "cgroup", "warn", "allows 0.5 CPUs, for workers: 1"),
    ({"cgroup": Cgroup(memory_bytes=GIB, memory_left=300 * MIB)}, "cgroup", "warn", "allows 300 MiB more memory"),
    ({"cgroup": None}, "cgroup", "unknown", "could not look"),
    (
        {"login": LoginPython(python="/opt/conda/bin/python")},
        "login-python",
        "warn",
        "finds /opt/conda/bin/python, a job",
    ),
    ({"login": LoginPython()}, "login-python", "warn", "a login finds no Python, a job /usr/bin/python3"),
    ({"login": LoginPython(error="csh is not known")}, "login-python", "unknown", "could not look: csh is not known"),
    (
        {"writes": {"workdir": Write(ms=2500)}},
        "write-time",
        "warn",
        "on disk after 2.5 s in workdir /workdir",
    ),
    ({"code": ("a.py", "b.py", "c.py", "d.py")}, "code", "warn", "changed since it was synced: a.py, b.py, c.py and 1"),
    ({"code": ("\udcff\x1b.py",)}, "code", "warn", r"changed since it was synced: \xff\x1b.py"),
    ({"code": None}, "code", "unknown", "could not look: no answer in time"),
    ({"writes": {"state": Write(error="Quota exceeded")}}, "writable", "fail", "state /state (Quota exceeded)"),
]
# (what differs on gpu02, what is said of it)
FACTS: list[tuple[dict[str, Any], str, str, str]] = [
    ({"torch": replace(TORCH, nccl_loaded="2.18.3", nccl_library="/x/libnccl.so.2")}, "nccl-equal", "fail", "2.18.3"),
    ({"settings": {"NCCL_ALGO": "Ring"}}, "settings-equal", "warn", "NCCL_ALGO=Ring (unset on gpu01)"),
    ({"settings": {"no_proxy": "10.0.0.0/8"}}, "settings-equal", "warn", "no_proxy=10.0.0.0/8 (unset on gpu01)"),
    ({"packages": {"numpy": "1.26.4"}}, "packages", "warn", "numpy 1.26.4 (numpy 2.1.0 on gpu01)"),
    ({"packages": {}}, "packages", "warn", "numpy not there (numpy 2.1.0 on gpu01)"),
    ({"packages": None}, "packages", "unknown", "could not look"),
]


@pytest.mark.parametrize(("fields", "name", "verdict", "words"), HEALTH, ids=[f"{row[1]} {row[3]}" for row in HEALTH])
def test_a_fault_in_the_health_is_named(fields: dict[str, Any], name: str, verdict: str, words: str) -> None:
    (result,) = wrong(unhealthy(**fields))
    assert (result.name, result.verdict, result.hosts) == (name, verdict, ("gpu02",))
    assert words in result.message
    assert verdict == "unknown" or (result.symptom and result.fix)


@pytest.mark.parametrize(("fields", "name", "verdict", "words"), FACTS, ids=[f"{row[1]} {row[3]}" for row in FACTS])
def test_a_fault_in_the_facts_is_named(fields: dict[str, Any], name: str, verdict: str, words: str) -> None:
    healthy = [seen(one, *NAMES, torch=TORCH) for one in ("gpu01", "gpu03")]
    (result,) = wrong(cluster(*healthy, seen("gpu02", *NAMES, **{"torch": TORCH, **fields})))
    assert (result.name, result.verdict, result.hosts) == (name, verdict, ("gpu02",))
    assert words in result.message
    assert verdict == "unknown" or (result.symptom and result.fix)


def test_one_other_nccl_that_all_load_is_told_where_it_lies() -> None:
    other = replace(TORCH, nccl_loaded="2.18.3", nccl_library="/x/libnccl.so.2")
    (result,) = wrong(cluster(*(seen(name, *NAMES, torch=other) for name in NAMES)))
    assert (result.name, result.verdict, result.hosts) == ("nccl-loaded", "warn", NAMES)
    assert result.message == "torch was built with NCCL 2.26.2, and loads 2.18.3 (/x/libnccl.so.2)"


def test_of_many_differences_some_are_listed() -> None:
    (result,) = wrong(changed(packages={"numpy": "2.1.0", **{f"p{n}": "1" for n in range(9)}}))
    assert result.message.endswith("p5 1 (not there on gpu01) and 3 more")


def test_settings_that_are_a_hosts_own_may_differ() -> None:
    assert said(changed(environment={"NCCL_SOCKET_IFNAME": "eth0"}, settings={"NCCL_IB_HCA": "mlx5_0"})) == []
    assert said(changed(environment={"NCCL_IB_GID_INDEX": "5"})) == []  # as the check hca-equal advises


def test_a_path_that_only_some_hosts_have_is_named_on_those_that_lack_it() -> None:
    entry = {"env": {"DATA": "/data/imagenet", "MODE": "fast", "BOTH": "/a:~/b"}}
    every = {"/data/imagenet": True, "/a": False, "~/b": False}
    hosts = {name: dict(every) for name in NAMES}
    hosts["gpu02"]["/data/imagenet"] = False

    def evidence() -> Evidence:
        return cluster(*(seen(name, *NAMES, entry=entry, health={"paths": hosts[name]}) for name in NAMES))

    (result,) = wrong(evidence())
    assert (result.name, result.verdict, result.hosts) == ("paths", "warn", ("gpu02",))
    assert result.message == "DATA=/data/imagenet is not there, on gpu01 it is"
    for paths in hosts.values():
        paths["/data/imagenet"] = False  # a job may make it
    assert said(evidence()) == []


def test_a_path_of_a_hosts_own_counts_as_the_variables() -> None:
    own = {"gpu01": "/data", "gpu02": "/scratch/data", "gpu03": "/mnt/data"}
    hosts = [
        seen(name, *NAMES, entry={"env": {"DATA": path}}, health={"paths": {path: name != "gpu02"}})
        for name, path in own.items()
    ]
    assert said(cluster(*hosts)) == [("paths", "warn", ("gpu02",))]


def test_a_link_to_data_that_leads_to_nothing_is_named() -> None:
    entry = {"links": {"data": "/scratch/sets", "out": "~/out"}}
    hosts = {
        "gpu01": {"/scratch/sets": True, "~/out": True},
        "gpu02": {"/scratch/sets": False, "~/out": True},
        "gpu03": {"~/out": True},
    }
    evidence = cluster(*(seen(name, *NAMES, entry=entry, health={"paths": hosts[name]}) for name in NAMES))
    told = {result.hosts: (result.verdict, result.message) for result in wrong(evidence)}
    assert told == {
        ("gpu02",): ("fail", "links that lead to nothing: data to /scratch/sets"),
        ("gpu03",): ("unknown", "could not look: /scratch/sets did not answer in time"),
    }


def test_only_old_locks_of_extensions_are_named() -> None:
    assert said(unhealthy(locks={"/c/x/lock": 30})) == []
    (result,) = wrong(unhealthy(locks={"/c/x/lock": 7200, "/c/y/lock": 3}))
    assert (result.name, result.hosts, result.message) == ("extension-locks", ("gpu02",), "/c/x/lock is 120 min old")


def sharing(key: str, *hosts: str, **fields: Any) -> Evidence:
    """A cluster in which some hosts see each other's marks in one of their folders."""
    own = [seen(name, *NAMES, **fields) for name in hosts]
    others = {name: tuple(other for other in hosts if other != name) for name in hosts}
    return cluster(*(with_answers(one, {SHARED: {**(SHARED.of(one) or {}), key: others[one.name]}}) for one in own))


def test_folders_that_hosts_have_in_common_are_told_with_those_hosts() -> None:
    (result,) = wrong(sharing("state", "gpu01", "gpu03"))
    assert (result.name, result.verdict, result.hosts) == ("shared", "warn", ("gpu01", "gpu03"))
    assert "clusterddp_state" in result.fix
    (result,) = wrong(sharing("workdir", "gpu01", "gpu02"))
    assert (result.name, result.verdict, result.hosts) == ("shared", "warn", ("gpu01", "gpu02"))
    assert said(sharing("home", "gpu01", "gpu02")) == []
    passed = [one for one in judge(sharing("home", "gpu01", "gpu02"), select()) if one.name == "shared"]
    assert [(one.message, one.hosts) for one in passed] == [
        ("they have one home", ("gpu01", "gpu02")),
        ("the hosts have folders of their own", ("gpu03",)),
    ]


def test_a_workdir_on_a_network_file_system_is_told_once() -> None:
    folders = {**{key: folder(f"/{key}") for key in ("state", "tmp")}}
    folders["workdir"] = folder("/work", network=True, filesystem="nfs4")
    # Where another host of the command has synced, this one's record is older than the files: no finding.
    found = said(sharing("workdir", *NAMES, health={"folders": folders, "code": ("train.py",)}))
    assert found == [("local-state", "warn", NAMES)]


def test_nodes_on_one_machine_may_share_all_they_have() -> None:
    twin: dict[str, Any] = {"boot": "b", "hostname": "gpu01", "addresses": (interface("10.0.0.1"),)}
    evidence = sharing("state", "gpu01", "gpu02", **twin)
    assert "shared" not in {name for name, _, _ in said(evidence)}


def test_a_host_without_a_mark_is_unknown() -> None:
    for shared in (None, {"state": ()}):
        missing_data = with_answers(seen("gpu02", *NAMES), {SHARED: shared})
        assert said(cluster(missing_data)) == [("shared", "unknown", ("gpu02",))]


def test_limits_that_leave_enough_pass() -> None:
    assert said(unhealthy(cgroup=Cgroup(memory_bytes=2 * GIB, memory_left=GIB, cpu_thousandths=1000))) == []


def test_what_the_inventory_says_of_python_is_meant_whatever_a_login_finds() -> None:
    other = {"login": LoginPython(python="/opt/conda/bin/python")}
    meanings: list[dict[str, Any]] = [{"python": "/usr/bin/python3"}, {"setup": ("module load python",)}]
    for meant in meanings:
        assert said(changed(entry=meant, health=other)) == []


def test_a_disk_that_is_full_is_not_told_as_one_that_cannot_be_written() -> None:
    folders = {**{key: folder(f"/{key}") for key in ("state", "tmp")}, "workdir": folder("/work", free_bytes=0)}
    full = {"workdir": Write(error="No space left on device")}
    assert said(unhealthy(folders=folders, writes=full)) == [("disk", "fail", ("gpu02",))]


def test_workers_of_a_job_by_hand_are_named_with_their_host() -> None:
    left = tuple(StrayRank(pid=100 + rank, rank=rank, world_size=16) for rank in range(10))
    (result,) = wrong(cluster(with_answers(seen("gpu02", *NAMES), {STRAY_RANKS: left})))
    assert (result.name, result.verdict, result.hosts) == ("stray-ranks", "warn", ("gpu02",))
    assert result.message.startswith("workers of a job by hand are running: rank 0 of 16 (pid 100), rank 1 of 16")
    assert result.message.endswith(" and 2 more")


@pytest.mark.parametrize("data", [None, {}, {"ranks": [{"pid": 1, "rank": "0", "world_size": 1}]}, {"ranks": [7]}])
def test_damaged_ranks_are_the_hosts_error(data: Any) -> None:
    with pytest.raises(HelperError, match="gpu02: its facts are damaged"):
        STRAY_RANKS.read("gpu02", data)


def test_a_host_that_does_not_tell_its_runs_is_unknown_alone() -> None:
    live = RunEvidence(run="abc", hosts=("gpu01", "gpu02"))
    silent = with_answers(seen("gpu02", *NAMES), {RUNS: Answer(error="the operation took too long")})
    assert said(cluster(silent, runs=(live,))) == [
        ("live-runs", "unknown", ("gpu02",)),
        ("live-runs", "warn", ("gpu01",)),
        ("leftovers", "unknown", ("gpu02",)),
    ]


def test_a_folder_that_many_hosts_share_costs_no_walk_through_all_for_each_two_of_them() -> None:
    def act(names: list[ComparedName]) -> None:
        made = [(name, seen(str(name))) for name in names]
        own = [replace(one, entry=replace(one.entry, name=name)) for name, one in made]
        others = {name: tuple(other for other in names if other is not name) for name in names}
        told = [with_answers(one, {SHARED: {"home": others[name]}}) for name, one in zip(names, own, strict=True)]
        judge(replace(cluster(), hosts=tuple(told)), select(only=["shared"]))

    assert comparisons(act, 40) <= 5 * comparisons(act, 20)
