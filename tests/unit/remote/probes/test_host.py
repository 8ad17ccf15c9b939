"""What a host says of itself: memory limits, logind, addresses, GPUs. nvidia-smi is a stand-in with made answers."""

from __future__ import annotations

import os
import socket
from pathlib import Path
from typing import Any

import pytest

from clusterddp.remote.probes.clock import clock
from clusterddp.remote.probes.facts import facts
from clusterddp.remote.probes.host import host_facts, logind_facts, memory_bytes, usable_cores
from clusterddp.remote.shared.names import interfaces
from clusterddp.remote.system import nvidia_smi
from tests.unit.operation import run_operation

ANSWERS = Path(__file__).parents[3] / "data" / "nvidia-smi"


def write(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def machine(folder: Path, membership: str, **limits: str) -> int | None:
    write(folder / "proc" / "meminfo", "MemTotal:       1000 kB\nMemFree: 5 kB\n")
    write(folder / "proc" / "self" / "cgroup", membership)
    for place, text in limits.items():
        write(folder / "cg" / place.replace("__", "/").replace("_dot_", "."), text)
    return memory_bytes(str(folder / "proc"), str(folder / "cg"))


def test_memory_is_the_machines_without_a_control_group(tmp_path: Path) -> None:
    assert machine(tmp_path, "0::/\n") == 1000 * 1024


def test_a_version_2_group_above_ours_limits_memory(tmp_path: Path) -> None:
    assert (
        machine(tmp_path, "0::/slice/job\n", slice__memory_dot_max="5000\n", slice__job__memory_dot_max="max\n") == 5000
    )


def test_a_version_1_group_limits_memory(tmp_path: Path) -> None:
    limit = {
        "memory__job__memory_dot_limit_in_bytes": "4096",
        "memory__memory_dot_limit_in_bytes": "9223372036854771712",
    }
    assert machine(tmp_path, "4:cpu,cpuacct:/other\n3:memory:/job\n", **limit) == 4096


def test_memory_is_unknown_rather_than_wrong(tmp_path: Path) -> None:
    assert memory_bytes(str(tmp_path), str(tmp_path)) is None


def cores(folder: Path, siblings: str, **limits: str) -> int:
    """What a machine has to offer whose CPUs each have these ``siblings``: ``%d`` is the CPU's own number."""
    for cpu in os.sched_getaffinity(0):
        write(folder / f"devices/system/cpu/cpu{cpu}/topology/thread_siblings_list", siblings.replace("%d", str(cpu)))
    for place, text in limits.items():
        write(folder / "fs/cgroup" / place.replace("__", "/").replace("_dot_", "."), text)
    return usable_cores(str(write(folder / "membership", "0::/slice/job\n")), str(folder))


def test_every_core_of_the_affinity_may_be_used(tmp_path: Path) -> None:
    assert cores(tmp_path, "%d\n") == len(os.sched_getaffinity(0))


def test_hardware_threads_of_one_core_count_once(tmp_path: Path) -> None:
    assert cores(tmp_path, "0-127\n") == 1


def test_cores_are_counted_where_the_kernel_does_not_tell_which_threads_they_have(tmp_path: Path) -> None:
    assert usable_cores(str(tmp_path / "none"), str(tmp_path)) == len(os.sched_getaffinity(0))


def test_a_quota_below_one_core_leaves_one(tmp_path: Path) -> None:
    assert cores(tmp_path, "%d\n", slice__cpu_dot_max="50000 100000\n") == 1


def test_a_quota_of_a_group_above_limits_the_cores(tmp_path: Path) -> None:
    assert cores(tmp_path, "%d\n", slice__cpu_dot_max="190000 100000\n", slice__job__cpu_dot_max="max 100000\n") == 1


def logind(root: Path, conf: str = "", *, linger: bool = False, systemd: bool = True) -> dict[str, Any]:
    if systemd:
        (root / "run/systemd/system").mkdir(parents=True)
    if linger:
        write(root / "var/lib/systemd/linger/alice", "")
    write(root / "etc/systemd/logind.conf", conf)
    return logind_facts("alice", 1000, str(root))


def test_logind_kills_when_it_is_told_to(tmp_path: Path) -> None:
    assert logind(tmp_path, "[Login]\n KillUserProcesses = yes\n#KillUserProcesses=no\n")["kill_user_processes"]


def test_logind_does_not_kill_by_default_but_removes_shared_memory(tmp_path: Path) -> None:
    assert logind(tmp_path) == {"kill_user_processes": False, "remove_ipc": True}


@pytest.mark.parametrize("spared", [{"linger": True}, {"systemd": False}])
def test_lingering_users_and_hosts_without_systemd_are_spared(tmp_path: Path, spared: dict[str, bool]) -> None:
    found = logind(tmp_path, "KillUserProcesses=yes\n", **spared)
    assert found == {"kill_user_processes": False, "remove_ipc": False}


def test_an_excluded_user_is_spared(tmp_path: Path) -> None:
    conf = "KillUserProcesses=yes\nKillExcludeUsers=root alice\n"
    assert not logind(tmp_path, conf)["kill_user_processes"]


def test_a_drop_in_of_the_administrator_hides_the_vendors(tmp_path: Path) -> None:
    write(tmp_path / "usr/lib/systemd/logind.conf.d/50-kill.conf", "KillUserProcesses=yes\n")
    assert logind(tmp_path)["kill_user_processes"]
    write(tmp_path / "etc/systemd/logind.conf.d/50-kill.conf", "KillUserProcesses=no\n")
    assert not logind_facts("alice", 1000, str(tmp_path))["kill_user_processes"]


def test_this_machine_has_facts() -> None:
    found = host_facts()
    assert found["hostname"] == socket.gethostname()
    assert found["uid"] == os.getuid()
    assert found["cores"] == len(os.sched_getaffinity(0))
    assert found["memory_bytes"] > 1 << 20


def test_the_loopback_is_among_the_addresses() -> None:
    (found,) = [one for one in interfaces.addresses() if one.address == "127.0.0.1"]
    assert (found.interface, found.family, found.prefix, found.speed_mbit, found.up) == ("lo", 4, 8, None, True)
    assert found.mtu > 1000


def test_the_address_that_ssh_came_to_is_the_third_word() -> None:
    assert interfaces.ssh_address({"SSH_CONNECTION": "10.0.0.1 40000 10.0.0.2 22"}) == "10.0.0.2"
    assert interfaces.ssh_address({"SSH_CONNECTION": "fe80::1%eth0 40000 fe80::2%eth0 22"}) == "fe80::2"
    assert interfaces.ssh_address({}) is None


def stand_in(folder: Path, gpu_answer: str, *, status: int = 0) -> dict[str, str]:
    """An environment whose nvidia-smi prints made answers."""
    script = f"""#!/bin/sh
case $1 in
  --query-gpu=*) cat {ANSWERS / gpu_answer}; exit {status};;
  --query-compute-apps=*) cat {ANSWERS / "apps.csv"};;
esac
"""
    write(folder / "nvidia-smi", script).chmod(0o755)
    return {"PATH": f"{folder}:{os.environ['PATH']}"}


def test_gpus_are_listed_with_who_computes_on_them(tmp_path: Path) -> None:
    found = nvidia_smi.read_query(nvidia_smi.start_query(stand_in(tmp_path, "four-a100.csv")))
    assert found.error is None
    assert [(gpu.index, gpu.used_mib, gpu.processes) for gpu in found.gpus] == [
        (0, 4, ()),
        (1, 71432, (4711,)),
        (2, 4, ()),
        (3, 4, (4712,)),
    ]
    assert found.gpus[0].name == "NVIDIA A100-SXM4-80GB"
    assert found.gpus[0].uuid == "GPU-11111111-aaaa-bbbb-cccc-000000000000"


def test_a_field_the_card_lacks_is_unknown(tmp_path: Path) -> None:
    hopper, old = nvidia_smi.read_query(nvidia_smi.start_query(stand_in(tmp_path, "mig.csv"))).gpus
    assert (hopper.mig, hopper.used_mib, old.mig) == (True, None, False)


def test_a_driver_that_does_not_answer_is_told_in_its_words(tmp_path: Path) -> None:
    found = nvidia_smi.read_query(nvidia_smi.start_query(stand_in(tmp_path, "no-driver.txt", status=9)))
    assert found.gpus == []
    assert (found.error or "").startswith("nvidia-smi failed with status 9: NVIDIA-SMI has failed because")


def test_a_lost_gpu_is_an_error_not_a_gpu(tmp_path: Path) -> None:
    found = nvidia_smi.read_query(nvidia_smi.start_query(stand_in(tmp_path, "lost.csv")))
    assert "GPU is lost" in (found.error or "")


def test_a_hanging_nvidia_smi_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nvidia_smi, "TIMEOUT", 0.2)
    write(tmp_path / "nvidia-smi", "#!/bin/sh\nexec sleep 600\n").chmod(0o755)
    found = nvidia_smi.read_query(nvidia_smi.start_query({"PATH": f"{tmp_path}:/usr/bin:/bin"}))
    assert "did not answer" in (found.error or "")


@pytest.mark.parametrize(("devices", "error"), [(0, None), (2, "{} does not start: Exec format error")])
def test_an_nvidia_smi_that_does_not_start_is_an_error_only_where_there_are_gpus(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, devices: int, error: str | None
) -> None:
    program = write(tmp_path / "nvidia-smi", "")
    program.chmod(0o755)
    monkeypatch.setattr(nvidia_smi, "pci_gpus", lambda: {"nvidia": devices, "amd": 0})
    found = nvidia_smi.read_query(nvidia_smi.start_query({"PATH": str(tmp_path)}))
    assert found == ([], error and error.format(program))


def test_gpus_on_the_bus_are_counted_and_what_is_none_is_not(tmp_path: Path) -> None:
    devices = {
        "nvidia data-centre": ("0x10de", "0x030200"),
        "nvidia desktop": ("0x10de", "0x030000"),
        "its sound": ("0x10de", "0x040300"),
        "an NVSwitch": ("0x10de", "0x068000"),
        "amd instinct": ("0x1002", "0x120000"),
        "amd older instinct": ("0x1002", "0x038000"),
        "a processor's graphics": ("0x1002", "0x030000"),
        "a console": ("0x1a03", "0x030000"),
    }
    for name, (vendor, kind) in devices.items():
        write(tmp_path / name / "vendor", vendor + "\n")
        write(tmp_path / name / "class", kind + "\n")
    assert nvidia_smi.pci_gpus(str(tmp_path)) == {"nvidia": 2, "amd": 2}
    assert nvidia_smi.pci_gpus("/nonexistent") == {"nvidia": 0, "amd": 0}


def test_an_interpreter_that_is_missing_leaves_all_other_facts(tmp_path: Path) -> None:
    found = run_operation(facts, {"job": {"python": "/nonexistent/python"}, "state": str(tmp_path)})
    assert found["torch"] is None
    assert "no /nonexistent/python" in found["python_error"]
    assert found["addresses"]


def test_the_inventorys_variables_stand_above_the_setups(tmp_path: Path) -> None:
    job = {"setup": ["export CUDA_VISIBLE_DEVICES=0"], "env": {"CUDA_VISIBLE_DEVICES": "1,2"}}
    found = run_operation(facts, {"job": {**job, "python": "/nonexistent/python"}, "state": str(tmp_path)})
    assert found["visible_devices"] == "1,2"


def test_the_clock_is_in_nanoseconds() -> None:
    assert run_operation(clock, {})["time_ns"] > 10**18
