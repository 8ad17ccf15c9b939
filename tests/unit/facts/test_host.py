"""A host's JSON becomes facts, or an error that names the host and the field; never anything else."""

from __future__ import annotations

import contextlib
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clusterddp.errors import ClusterddpError, HelperError
from clusterddp.facts.gpu_assignment import assign_gpus, check_gpus, worker_count
from clusterddp.facts.host import Facts
from clusterddp.facts.network import candidates, loopback
from clusterddp.inventory import HostEntry
from tests.unit.facts_made import facts_json

GPU = {"index": 0, "uuid": "GPU-1", "name": "card", "memory_mib": 1, "used_mib": None, "driver": "550"}
GPU |= {"mig": False, "processes": [7]}
ADDRESS = {"interface": "eth0", "address": "10.0.0.1", "family": 4, "prefix": 24, "speed_mbit": None}
ADDRESS |= {"up": True, "mtu": 1500}


def test_a_healthy_hosts_facts_are_read() -> None:
    facts = Facts.from_json("gpu01", facts_json(gpus=[GPU]), clock_offset_ns=-5, clock_error_ns=2)
    assert facts.host == "gpu01"
    assert facts.ephemeral_range == (32768, 60999)
    assert facts.addresses[1].name == "eth0"
    assert str(facts.addresses[1].network) == "10.0.0.0/24"
    assert facts.addresses[0].loopback
    assert facts.gpus[0].processes == (7,)
    assert facts.torch is not None
    assert facts.torch.nccl == "2.26.2"
    assert (facts.clock_offset_ns, facts.clock_error_ns) == (-5, 2)


def test_an_import_error_stands_alone() -> None:
    facts = Facts.from_json("gpu01", facts_json(torch={"import_error": "ImportError: no", "device_error": None}))
    assert facts.torch is not None
    assert facts.torch.import_error == "ImportError: no"
    assert facts.devices == 0


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("hostname", 5),
        ("hostname", "x" * 5000),
        ("cores", "2"),
        ("cores", True),
        ("cores", -1),
        ("uid", 1 << 70),
        ("remove_ipc", 0),
        ("python", "python3"),
        ("python", "/usr/bin/py\nthon"),
        ("python", "/usr/bin/\x1b]0;owned\x07python"),
        ("addresses", {}),
        ("addresses", [5]),
        ("addresses", [ADDRESS | {"address": "10.0.0.300"}]),
        ("addresses", [ADDRESS | {"address": "::1"}]),
        ("addresses", [ADDRESS | {"address": "fe80::1%\x1b[2J\n$(reboot)", "family": 6}]),
        ("addresses", [ADDRESS | {"prefix": 33}]),
        ("addresses", [ADDRESS | {"interface": "eth0 -x"}]),
        ("addresses", [ADDRESS] * 5000),
        ("gpus", [GPU | {"uuid": "GPU-1,GPU-2"}]),
        ("gpus", [GPU | {"processes": ["7"]}]),
        ("ephemeral_range", [1]),
        ("pci_gpus", None),
        ("torch", []),
        ("torch", {"version": "2"}),
    ],
)
def test_a_damaged_field_is_an_error_that_names_host_and_field(field: str, value: Any) -> None:
    with pytest.raises(HelperError, match=rf"^gpu01: its facts are damaged: {field}") as caught:
        Facts.from_json("gpu01", facts_json(**{field: value}))
    assert len(str(caught.value)) < 300


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)
IP = st.ip_addresses().map(str)
PLAUSIBLE = st.fixed_dictionaries(
    {},
    optional={
        "boot": st.sampled_from(["a", "b"]),
        "ssh_address": st.none() | IP,
        "visible_devices": st.none()
        | st.sampled_from(["", "-1", "0", "1,0", "GPU-1", "MIG-x,0", ",,", "²"])
        | st.text(),
        "addresses": st.lists(
            st.fixed_dictionaries(
                {
                    "interface": st.sampled_from(["lo", "eth0", "ib0", "docker0"]),
                    "address": IP,
                    "family": st.sampled_from([4, 6]),
                    "prefix": st.integers(0, 32),
                    "speed_mbit": st.none() | st.integers(0, 400_000),
                    "up": st.booleans(),
                    "mtu": st.just(1500),
                }
            ),
            max_size=3,
        ),
        "gpus": st.lists(
            st.builds(
                lambda index, uuid, mig, processes: (
                    GPU | {"index": index, "uuid": uuid, "mig": mig, "processes": processes}
                ),
                st.integers(0, 3),
                st.sampled_from(["GPU-1", "GPU-2", "GPU-12"]),
                st.booleans(),
                st.lists(st.integers(0, 9), max_size=1),
            ),
            max_size=4,
        ),
        "pci_gpus": st.fixed_dictionaries({"nvidia": st.integers(0, 4), "amd": st.integers(0, 1)}),
        "nvidia_error": st.none() | st.text(max_size=5),
        "torch": st.none() | st.just({"import_error": "no"}),
    },
)


@given(JSON)
def test_any_json_is_facts_or_our_error(data: Any) -> None:
    with contextlib.suppress(ClusterddpError):
        Facts.from_json("gpu01", data)


@given(st.dictionaries(st.sampled_from(sorted(facts_json())), JSON, max_size=3))
def test_any_damage_to_healthy_facts_is_facts_or_our_error(damage: dict[str, Any]) -> None:
    with contextlib.suppress(ClusterddpError):
        Facts.from_json("gpu01", facts_json(**damage))


ENTRY = st.fixed_dictionaries(
    {},
    optional={
        "nproc": st.none() | st.integers(1, 4),
        "gpus": st.none() | st.integers(0, 4) | st.sampled_from([("0",), ("1", "GPU-1"), ("MIG-a",), ("9",)]),
        "data_address": st.none() | IP | st.sampled_from(["gpu01", ""]),
        "interface": st.none() | st.sampled_from(["eth0", "ib0"]),
    },
)


@given(
    st.lists(st.tuples(ENTRY, PLAUSIBLE), min_size=1, max_size=3), st.sampled_from([None, "all", "free:1", "0", "x"])
)
def test_judging_any_facts_gives_a_value_or_our_error(hosts: list[Any], policy: str | None) -> None:
    nodes = []
    for place, (variables, fields) in enumerate(hosts):
        name = f"gpu{place:02}"
        with contextlib.suppress(ClusterddpError):
            facts = Facts.from_json(name, facts_json(**fields))
            nodes.append((HostEntry(name=name, address=name, **variables), facts))
    assert all(isinstance(line, str) for line in check_gpus(nodes))
    for judge in (loopback, candidates, lambda nodes: assign_gpus(nodes, policy)):
        with contextlib.suppress(ClusterddpError):
            judge(nodes)
    assert all(worker_count(entry, facts) >= 1 for entry, facts in nodes)
