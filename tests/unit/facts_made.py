"""Facts and nodes made for tests: a healthy host, and the few fields a test is about."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from clusterddp.facts.host import Facts, Gpu, Interface, TorchFacts
from clusterddp.inventory import HostEntry

Node = tuple[HostEntry, Facts]


def facts_json(**fields: Any) -> dict[str, Any]:
    """What a healthy CPU host answers."""
    return {
        "hostname": "gpu01",
        "kernel": "6.1.0",
        "cores": 2,
        "usable_cores": 2,
        "memory_bytes": 1 << 30,
        "shm_bytes_free": 1 << 29,
        "boot": "boot-1",
        "uid": 1000,
        "user": "alice",
        "home": "/home/alice",
        "login_shell": "/bin/bash",
        "kill_user_processes": False,
        "remove_ipc": False,
        "ssh_address": "10.0.0.1",
        "addresses": [
            {"interface": "lo", "address": "127.0.0.1", "family": 4, "prefix": 8}
            | {"speed_mbit": None, "up": True, "mtu": 65536},
            {"interface": "eth0", "address": "10.0.0.1", "family": 4, "prefix": 24}
            | {"speed_mbit": 1000, "up": True, "mtu": 1500},
        ],
        "ephemeral_range": [32768, 60999],
        "gpus": [],
        "nvidia_error": None,
        "pci_gpus": {"nvidia": 0, "amd": 0},
        "visible_devices": None,
        "omp_num_threads": None,
        "environment": {},
        "settings": {},
        "folder_variables": {},
        "packages": {"numpy": "2.1.0", "torch": "2.7.0"},
        "python": "/usr/bin/python3",
        "python_version": "3.11.2",
        "python_error": None,
        "torch_folder": None,
        "torch": {
            "version": "2.7.0",
            "cuda": "12.8",
            "hip": None,
            "nccl": "2.26.2",
            "nccl_loaded": "2.26.2",
            "nccl_library": "/opt/train/lib/libnccl.so.2",
            "gloo": True,
            "nccl_available": True,
            "device_count": 0,
            "device_names": [],
            "device_error": None,
            "import_error": None,
        },
        "time_ns": 10**18,
        **fields,
    }


def gpu_health_json(**fields: Any) -> dict[str, Any]:
    """What a host answers of GPUs of which there is nothing to tell."""
    return {
        "cards": [],
        "error": None,
        "links": {},
        "links_error": None,
        "xids": [],
        "xids_error": None,
        "switches": 0,
        "fabric_manager": None,
        "peer_memory": False,
        "open_driver": False,
        "mellanox": [],
        "iommu": None,
        "trial": None,
        **fields,
    }


def interface(
    address: str, name: str = "eth0", *, prefix: int = 24, speed: int | None = 1000, **more: Any
) -> Interface:
    family = 6 if ":" in address else 4
    values = {"up": True, "mtu": 1500, **more}
    return Interface(name=name, address=address, family=family, prefix=prefix, speed_mbit=speed, **values)


def gpus(count: int, *, machine: str = "1", busy: tuple[int, ...] = (), mig: bool = False) -> tuple[Gpu, ...]:
    return tuple(
        Gpu(
            index=index,
            uuid=f"GPU-{machine}-{index}",
            name="card",
            memory_mib=81920,
            used_mib=4,
            driver="550",
            mig=mig,
            processes=(4711,) if index in busy else (),
        )
        for index in range(count)
    )


def node(name: str = "gpu01", *, entry: dict[str, Any] | None = None, devices: int = 0, **fields: Any) -> Node:
    """A node whose torch sees ``devices`` GPUs, with entry and facts changed as told."""
    facts = Facts.from_json(name, facts_json(boot=f"boot-{name}"))
    torch = fields.pop("torch", TorchFacts(version="2.7.0", cuda="12.8", device_count=devices))
    own = {"gpus": gpus(devices, machine=name), "pci_nvidia": devices, **fields}
    return HostEntry(name=name, address=name, **(entry or {})), replace(facts, torch=torch, **own)
