"""The doctor's checks over made evidence: each fault is named with its host, and nothing else is."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from clusterddp.checks.catalog import TABLE
from clusterddp.checks.engine import judge, select
from clusterddp.checks.evidence import Answer, Evidence, HostEvidence, NetworkEvidence, RunEvidence
from clusterddp.checks.needs import DIALLED, HEALTH, NETWORK
from clusterddp.errors import AuthenticationError, ClusterddpError, HelperError, HostKeyError, UnreachableError
from clusterddp.facts.host import TorchFacts
from clusterddp.remote.shared.probes.health_records import Lookup, PortOwner
from tests.unit.evidence_made import (
    ComparedName,
    cluster,
    comparisons,
    failure,
    folder,
    said,
    seen,
    unreached,
    with_answers,
    wrong,
)
from tests.unit.facts_made import gpus, interface

NAMES = ("gpu01", "gpu02", "gpu03")
MIB, GIB = 1 << 20, 1 << 30
TORCH = TorchFacts(version="2.7.0", cuda="12.8", gloo=True, nccl_available=True)


def changed(**fields: Any) -> Evidence:
    """A cluster whose second host differs."""
    return cluster(seen("gpu02", *NAMES, **fields))


def unhealthy(**fields: Any) -> Evidence:
    return changed(health=fields)


def test_nothing_is_wrong_with_a_healthy_cluster() -> None:
    assert said(cluster()) == []


ERRORS: list[tuple[ClusterddpError, str]] = [
    (UnreachableError("gpu02", "no answer from 10.0.0.2:22"), "connection"),
    (AuthenticationError("gpu02", "alice@10.0.0.2 refused our key"), "connection"),
    (HostKeyError("gpu02", "its host key is unknown", remedy="compare it"), "host-keys"),
    (HelperError("gpu02", "no python3 on the host", remedy="install it"), "helper"),
]


@pytest.mark.parametrize(("error", "name"), ERRORS, ids=[type(error).__name__ for error, _ in ERRORS])
def test_a_host_that_is_not_reached_is_told_once(error: ClusterddpError, name: str) -> None:
    lost = HostEvidence(entry=seen("gpu02").entry, error=error)
    (result,) = wrong(cluster(lost))
    assert (result.name, result.verdict, result.hosts) == (name, "fail", ("gpu02",))
    assert result.message == error.message.removeprefix("gpu02: ")
    assert result.fix


def test_a_finding_on_each_of_many_hosts_costs_no_comparison_of_every_host_with_every_other() -> None:
    def act(names: list[ComparedName]) -> None:
        judge(unreached(*names), select())

    assert comparisons(act, 40) <= 2 * comparisons(act, 20)


def test_a_full_disk_is_told_with_what_a_job_would_say_of_it() -> None:
    full = "cannot write /state/helper: No space left on device"
    (result,) = wrong(cluster(HostEvidence(entry=seen("gpu02").entry, error=HelperError("gpu02", full))))
    assert (result.name, result.symptom) == ("helper", "No space left on device")


def test_a_setup_that_fails_is_told_once() -> None:
    lost = replace(seen("gpu02"), facts=None, facts_error="setup line `false` failed with status 1")
    assert said(cluster(lost)) == [("setup", "fail", ("gpu02",))]


def test_a_host_that_could_not_be_looked_at_is_unknown() -> None:
    missing_data = with_answers(seen("gpu02"), {HEALTH: Answer(error="the operation took too long")})
    found = wrong(cluster(missing_data))
    assert {result.verdict for result in found} == {"unknown"}
    assert {"limits", "disk", "names"} <= {result.name for result in found}
    assert {result.hosts for result in found} == {("gpu02",)}
    assert found[0].message == "could not look: the operation took too long"


def test_a_network_that_was_not_dialled_is_unknown() -> None:
    found = wrong(cluster(network=None))
    assert {(result.name, result.verdict) for result in found} == {
        (check.name, "unknown")
        for check in TABLE
        if {NETWORK, DIALLED} & set(check.needs) and check.name in {one.name for one in select()}
    }


# (what differs on gpu02, what is said of it)
FACTS: list[tuple[dict[str, Any], str, str, str]] = [
    ({"environment": {"MASTER_ADDR": "x", "PET_NNODES": "2"}}, "login-environment", "warn", "MASTER_ADDR, PET_NNODES"),
    (
        {"environment": {"CLUSTERDDP_INVENTORY": "x", "CLUSTERDDP_RUN_ID": "y"}},
        "login-environment",
        "warn",
        "sets CLUSTERDDP_RUN_ID",
    ),
    ({"environment": {"NCCL_IB_DISABLE": "1"}}, "settings-equal", "warn", "NCCL_IB_DISABLE=1"),
    (
        {"environment": {"GLOO_SOCKET_IFNAME": "ib9"}},
        "interface",
        "fail",
        "GLOO_SOCKET_IFNAME=ib9, and it has lo, eth0",
    ),
    ({"environment": {"NCCL_SOCKET_IFNAME": "=eth"}}, "interface", "fail", "NCCL_SOCKET_IFNAME==eth"),
    ({"environment": {"NCCL_SOCKET_IFNAME": "^eth,lo"}}, "interface", "fail", "^eth,lo"),
    ({"python": None, "python_error": "no python", "torch": None}, "python", "fail", "no python"),
    ({"torch": TorchFacts(import_error="ModuleNotFoundError: x")}, "torch", "fail", "ModuleNotFoundError: x"),
    ({"python_version": "3.9.1"}, "python-equal", "warn", "Python 3.9.1, 3.11.2 on gpu01"),
    ({"torch": replace(TORCH, version="2.6.0+cu124")}, "torch-equal", "fail", "torch 2.6.0+cu124, 2.7.0 on gpu01"),
    ({"cores": 1}, "hardware-equal", "warn", "1 core, 2 on most"),
    ({"memory_bytes": GIB // 2}, "hardware-equal", "warn", "0 GiB of memory, 1 on most"),
    ({"shm_bytes_free": 64 * MIB}, "shm", "fail", "only 64 MiB"),
    ({"shm_bytes_free": 200 * MIB}, "shm", "warn", "only 200 MiB"),
    ({"shm_bytes_free": None}, "shm", "fail", "no /dev/shm"),
    ({"kill_user_processes": True}, "lingering", "fail", "KillUserProcesses"),
    ({"remove_ipc": True}, "lingering", "warn", "RemoveIPC"),
    ({"clock_offset_ns": 7 * 10**9}, "clock", "warn", "7 s ahead of"),
    ({"clock_offset_ns": -60 * 10**9}, "clock", "fail", "60 s behind"),
]


@pytest.mark.parametrize(("fields", "name", "verdict", "words"), FACTS, ids=[f"{row[1]} {row[3]}" for row in FACTS])
def test_a_fault_in_the_facts_is_named(fields: dict[str, Any], name: str, verdict: str, words: str) -> None:
    (result,) = wrong(changed(**fields))
    assert (result.name, result.verdict, result.hosts) == (name, verdict, ("gpu02",))
    assert words in result.message
    assert result.symptom
    assert result.fix


def test_a_clock_that_may_be_right_within_its_error_passes() -> None:
    assert said(changed(clock_offset_ns=7 * 10**9, clock_error_ns=3 * 10**9)) == []


def test_of_two_clocks_the_one_that_differs_from_ours_is_named() -> None:
    off = seen("gpu01", "gpu02", clock_offset_ns=60 * 10**9)
    assert said(cluster(off, count=2)) == [("clock", "fail", ("gpu01",))]


@pytest.mark.parametrize("seconds", [60, -60])
def test_a_clock_ahead_is_judged_as_one_behind(seconds: int) -> None:
    off = seen("gpu01", *NAMES, clock_offset_ns=seconds * 10**9)
    assert said(cluster(off)) == [("clock", "fail", ("gpu01",))]
    two = cluster(*(seen(name, *NAMES, clock_offset_ns=seconds * 10**9) for name in NAMES[1:]))
    assert said(two) == [("clock", "fail", ("gpu02", "gpu03"))]


def test_the_clock_of_one_host_alone_is_not_compared() -> None:
    assert said(cluster(seen("gpu01", "gpu01", clock_offset_ns=60 * 10**9), count=1)) == []


# (what gpu02's health is, what is said of it)
UNHEALTHY: list[tuple[dict[str, Any], str, str, str]] = [
    ({"limits": {"nofile": (256, 4096)}}, "limits", "warn", "nofile 256"),
    ({"limits": {"nproc": (512, 512)}}, "limits", "warn", "nproc 512"),
    ({"limits": {"memlock": (65536, 65536)}, "infiniband": True}, "limits", "fail", "memlock is 64 KiB"),
    ({"available_bytes": 300 * MIB}, "memory", "warn", "only 300 MiB"),
    ({"taken": tuple(range(29400, 29500))}, "ports-free", "fail", "0 of the ports 29400-29499 are free"),
    ({"taken": tuple(range(29400, 29498))}, "ports-free", "warn", "2 of the ports"),
]
FOLDERS: list[tuple[dict[str, Any], str, str, str]] = [
    ({"free_bytes": 3 * MIB}, "disk", "fail", "workdir /work: 3 MiB free"),
    ({"free_bytes": 500 * MIB}, "disk", "warn", "workdir /work: 500 MiB free"),
    ({"free_inodes": 3}, "disk", "fail", "workdir /work: 3 inodes free"),
    ({"writable": False}, "writable", "fail", "workdir /work"),
    ({"error": "no answer within 4 s"}, "mounts", "fail", "workdir /work: no answer within 4 s"),
    ({"network": True, "filesystem": "nfs4"}, "local-state", "warn", "lies on nfs4"),
]


@pytest.mark.parametrize(
    ("fields", "name", "verdict", "words"), UNHEALTHY, ids=[f"{row[1]} {row[3]}" for row in UNHEALTHY]
)
def test_a_fault_in_the_health_is_named(fields: dict[str, Any], name: str, verdict: str, words: str) -> None:
    (result,) = wrong(unhealthy(**fields))
    assert (result.name, result.verdict, result.hosts) == (name, verdict, ("gpu02",))
    assert words in result.message


@pytest.mark.parametrize(("fields", "name", "verdict", "words"), FOLDERS, ids=[f"{row[1]} {row[3]}" for row in FOLDERS])
def test_a_fault_of_a_folder_is_named(fields: dict[str, Any], name: str, verdict: str, words: str) -> None:
    folders = {**{key: folder(f"/{key}") for key in ("state", "tmp")}, "workdir": folder("/work", **fields)}
    (result,) = wrong(unhealthy(folders=folders))
    assert (result.name, result.verdict, result.hosts) == (name, verdict, ("gpu02",))
    assert words in result.message


def test_a_file_system_without_a_number_of_inodes_passes() -> None:
    folders = {key: folder(f"/{key}", inodes=0, free_inodes=0) for key in ("state", "workdir", "tmp")}
    assert said(unhealthy(folders=folders)) == []


def named(**names: Lookup) -> Evidence:
    healthy = HEALTH.of(seen("gpu02", *NAMES))
    assert healthy
    return changed(health={"names": {**healthy.names, **names}})


def test_names_that_mean_another_machine_are_told_by_who_takes_them_so() -> None:
    loop = Lookup(addresses=("127.0.1.1",))
    assert said(named(gpu02=loop)) == [("own-name", "warn", ("gpu02",))]
    assert said(named(gpu01=loop)) == [("names", "warn", ("gpu02",))]
    assert said(named(gpu01=Lookup(addresses=("10.9.9.9",)))) == [("names", "warn", ("gpu02",))]
    assert said(named(gpu02=Lookup(addresses=("10.9.9.9",)))) == [("own-name", "warn", ("gpu02",))]
    assert said(named(gpu02=Lookup(addresses=("127.0.1.1", "10.0.0.2")))) == []


def test_a_dead_name_server_is_told_by_host() -> None:
    silent = Lookup(error="no answer within 4 s")
    (result,) = wrong(named(gpu01=silent, gpu03=silent))
    assert (result.name, result.hosts) == ("names", ("gpu02",))
    assert result.message == "gpu01, gpu03: the name cannot be looked up (no answer within 4 s)"


def test_hosts_yml_is_named_for_names_of_the_inventory_alone() -> None:
    """A hostname that the inventory does not have is written on its own host only."""
    found, silent = Lookup(addresses=("10.0.0.3",)), Lookup(error="no answer within 4 s")
    hosts = [
        seen(name, *NAMES, hostname=hostname, health={"names": {**HEALTH.of(seen(name, *NAMES)).names, **names}})  # type: ignore[union-attr]
        for name, hostname, names in (
            ("gpu01", "gpu01", {"node-03": found}),
            ("gpu02", "gpu02", {"node-03": silent, "gpu01": silent}),
            ("gpu03", "node-03", {"node-03": found}),
        )
    ]
    results = wrong(cluster(*hosts))
    assert {one.message.partition(":")[0]: one.playbook for one in results} == {"gpu01": "hosts.yml", "node-03": ""}
    assert ["hosts.yml" in one.fix for one in results] == [bool(one.playbook) for one in results]


@pytest.mark.parametrize(
    ("word", "meaning"),
    [
        ("timeout", "no answer, a firewall drops it"),
        ("lost", "no answer, and other connections between them lose packets"),
        ("refused", "refused, a firewall rejects it"),
        ("no route", "no route, or a firewall rejects it"),
        ("no data", "it connects, but nothing comes after: packets are lost, or another program has the port"),
    ],
)
def test_a_way_that_is_shut_is_told_once(word: str, meaning: str) -> None:
    both = (failure("gpu01", "gpu02", word, ranged=True), failure("gpu01", "gpu02", word, ranged=False))
    (result,) = wrong(cluster(failures=both))
    assert (result.name, result.verdict, set(result.hosts)) == ("network", "fail", {"gpu01", "gpu02"})
    assert result.message == f"gpu01 → gpu02 on every port: {meaning}"


def test_a_host_whose_ports_are_shut_for_all_is_the_one_named() -> None:
    ranged = tuple(failure(source, "gpu02", ranged=True) for source in ("gpu01", "gpu03"))
    (result,) = wrong(cluster(failures=ranged))
    assert (result.name, result.hosts) == ("ports", ("gpu02",))
    assert result.message == "gpu01 → gpu02, gpu03 → gpu02 on 29400-29499: no answer, a firewall drops it"
    chosen = tuple(failure("gpu02", target, ranged=False) for target in ("gpu01", "gpu03"))
    (result,) = wrong(cluster(failures=chosen))
    assert (result.name, result.hosts) == ("network", ("gpu02",))
    assert "on ephemeral ports" in result.message


def test_a_host_that_cannot_listen_is_named() -> None:
    where = {name: interface(f"10.0.0.{name[-1]}") for name in NAMES}
    deaf = NetworkEvidence(where=where, deaf={"gpu03": "no free port in 29400-29499"})
    assert said(cluster(network=deaf)) == [("ports", "fail", ("gpu03",))]


def test_without_a_network_nothing_passes_that_was_not_dialled() -> None:
    (result,) = wrong(cluster(network=NetworkEvidence(error="no network holds an address of every host")))
    assert (result.name, result.verdict, result.hosts) == ("network", "fail", NAMES)
    deaf = NetworkEvidence(deaf={"gpu03": "no free port in 29400-29499"})
    results = judge(cluster(network=deaf), select(only=["network"]))
    assert [(one.verdict, one.hosts) for one in results if one.name == "network"] == [
        ("skipped", ("gpu03",)),
        ("pass", ("gpu01", "gpu02")),
    ]


def test_the_fix_of_a_shut_way_names_every_port_that_is_needed() -> None:
    (result,) = wrong(cluster(failures=(failure("gpu01", "gpu02", ranged=False),)))
    assert result.fix.startswith("let TCP through between the hosts on 29400-29499, 32768-60999, ")


def test_memory_that_is_a_little_less_is_the_same() -> None:
    assert said(changed(memory_bytes=GIB - 50 * MIB)) == []


def test_what_a_host_does_not_tell_is_unknown() -> None:
    assert said(unhealthy(available_bytes=None)) == [("memory", "unknown", ("gpu02",))]
    assert said(unhealthy(names={})) == [("own-name", "unknown", ("gpu02",)), ("names", "unknown", ("gpu02",))]
    told = said(with_gpus(entry={"nproc": 2}, nvidia_error="nvidia-smi failed", gpus=()))
    assert ("busy-gpus", "unknown", ("gpu02",)) in told


def test_cards_that_differ_are_named() -> None:
    where = {name: interface(f"10.0.0.{name[-1]}") for name in NAMES}
    where["gpu03"] = replace(where["gpu03"], mtu=9000, speed_mbit=100)
    assert said(cluster(network=NetworkEvidence(where=where))) == [
        ("mtu-equal", "warn", ("gpu03",)),
        ("speed-equal", "warn", ("gpu03",)),
    ]


def test_one_machine_twice_is_named_unless_it_is_meant() -> None:
    twin: dict[str, Any] = {"boot": "b", "hostname": "gpu01", "addresses": (interface("10.0.0.1"),)}
    one, two = seen("gpu01", "gpu03", **twin), seen("gpu02", "gpu01", "gpu03", **twin)
    assert said(cluster(one, two)) == [("same-machine", "warn", ("gpu01", "gpu02"))]
    meant = [replace(host, entry=replace(host.entry, gpus=(word,))) for host, word in ((one, "GPU-1"), (two, "GPU-2"))]
    assert "same-machine" not in {name for name, _, _ in said(cluster(*meant))}


def test_machines_of_one_name_are_named() -> None:
    two = seen("gpu02", *NAMES, hostname="gpu01", health={"names": {}})
    assert ("hostnames", "warn", ("gpu01", "gpu02")) in said(cluster(two))


def with_gpus(**fields: Any) -> Evidence:
    return cluster(*(seen(name, *NAMES, devices=2, **(fields if name == "gpu02" else {})) for name in NAMES))


def test_gpus_are_compared_with_what_is_expected() -> None:
    assert said(with_gpus()) == []
    assert said(with_gpus(entry={"gpus": 4})) == [("gpus", "fail", ("gpu02",))]
    assert said(with_gpus(entry={"gpus": ("0", "7")})) == [("gpus", "fail", ("gpu02",))]
    assert said(with_gpus(nvidia_error="nvidia-smi failed", gpus=())) == [("gpus", "fail", ("gpu02",))]
    assert said(with_gpus(torch=replace(TORCH, device_count=1)))[0] == ("gpus", "fail", ("gpu02",))


def test_a_driver_that_is_too_old_is_named() -> None:
    old = tuple(replace(gpu, driver="470.82.01") for gpu in gpus(2, machine="gpu02"))
    (result,) = wrong(with_gpus(gpus=old))
    assert (result.name, result.verdict, result.hosts) == ("driver", "fail", ("gpu02",))
    assert result.message == "driver 470.82.01, and CUDA 12 needs 525.60 or newer"


def test_an_old_driver_with_which_torch_has_started_the_gpus_passes() -> None:
    old = tuple(replace(gpu, driver="470.82.01") for gpu in gpus(2, machine="gpu02"))
    started = TorchFacts(version="2.7.0", cuda="12.8", gloo=True, nccl_available=True, device_count=2)
    one = seen("gpu02", *NAMES, devices=2, gpus=old, torch=replace(started, device_names=("card", "card")))
    assert said(cluster(one, *(seen(name, *NAMES, devices=2) for name in NAMES[::2]))) == []


def test_a_gpu_that_does_not_start_is_named() -> None:
    broken = replace(TORCH, device_count=2, device_error="CUDA error: Error 802")
    found = said(with_gpus(torch=broken))
    assert [(name, hosts) for name, _, hosts in found] == [("gpus", ("gpu02",))]


def test_a_gpu_that_others_use_fails_and_one_of_ours_warns() -> None:
    busy = gpus(2, machine="gpu02", busy=(1,))
    for user, verdict in (("bob", "fail"), ("alice", "warn")):
        owners = {4711: PortOwner(user=user, command="python")}
        (result,) = wrong(with_gpus(gpus=busy, health={"owners": owners}))
        assert (result.name, result.verdict, result.hosts) == ("busy-gpus", verdict, ("gpu02",))
        assert result.message == f"GPU 1 is busy: {user}'s python (pid 4711), 4 MiB used"


def test_live_runs_and_what_runs_have_left_are_named() -> None:
    live = RunEvidence(run="abc", name="night", operator="bob@desk", hosts=("gpu01", "gpu02"))
    left = RunEvidence(run="xyz", hosts=("gpu03",), left={"gpu03": (7, 8)})
    found = wrong(cluster(runs=(live, left)))
    assert [(result.name, result.hosts) for result in found] == [
        ("live-runs", ("gpu01", "gpu02")),
        ("leftovers", ("gpu03",)),
    ]
    assert found[0].message == "run abc (night) of bob@desk is live here"
    assert found[1].fix == "`clusterddp stop xyz`"


def test_what_a_login_prints_is_shown() -> None:
    noisy = replace(seen("gpu02", *NAMES), noise="Welcome!\nmore\n")
    (result,) = wrong(cluster(noisy))
    assert (result.name, result.verdict) == ("login-noise", "warn")
    assert "'Welcome!'" in result.message


def test_several_faults_at_once_are_all_named() -> None:
    lost = HostEvidence(entry=seen("gpu01").entry, error=UnreachableError("gpu01", "no answer"))
    found = said(cluster(lost, seen("gpu02", *NAMES, shm_bytes_free=MIB), seen("gpu03", *NAMES, remove_ipc=True)))
    assert found == [
        ("connection", "fail", ("gpu01",)),
        ("shm", "fail", ("gpu02",)),
        ("lingering", "warn", ("gpu03",)),
    ]
