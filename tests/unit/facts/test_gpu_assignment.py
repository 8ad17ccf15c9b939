"""Which GPUs each node takes, how many workers that makes, and what is wrong."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clusterddp.errors import PlanError, UsageError
from clusterddp.facts.gpu_assignment import assign_gpus, check_gpus, worker_count
from clusterddp.facts.host import TorchFacts
from tests.unit.facts_made import Node, gpus, node


def shared(*names: str, count: int = 4, entries: dict[str, dict[str, Any]] | None = None, **fields: Any) -> list[Node]:
    """Nodes on one machine."""
    cards = fields.pop("gpus", gpus(count, machine="same"))
    own = entries or {}
    return [node(name, devices=count, entry=own.get(name), boot="same", **{"gpus": cards, **fields}) for name in names]


def uuids(*indices: int) -> tuple[str, ...]:
    return tuple(f"GPU-same-{index}" for index in indices)


def test_a_worker_for_every_gpu_torch_sees() -> None:
    assert worker_count(*node(devices=8)) == 8


def test_one_worker_without_gpu() -> None:
    assert worker_count(*node()) == 1
    assert worker_count(*node(torch=None)) == 1


def test_the_inventorys_number_stands_above_what_is_there() -> None:
    assert worker_count(*node(devices=8, entry={"nproc": 3})) == 3


def test_a_worker_for_every_gpu_that_was_given() -> None:
    assert worker_count(*node(devices=8), ("GPU-1", "GPU-2")) == 2
    assert worker_count(*node(devices=8), ()) == 1


def test_a_node_alone_keeps_what_its_host_shows() -> None:
    assert assign_gpus([node("a", devices=2), node("b", devices=4), node("c")]) == {"a": None, "b": None, "c": None}


def test_nodes_on_one_machine_share_its_gpus_disjointly() -> None:
    assert assign_gpus(shared("a", "b")) == {"a": uuids(0, 1), "b": uuids(2, 3)}
    assert assign_gpus(shared("a", "b", count=3)) == {"a": uuids(0, 1), "b": uuids(2)}


def test_more_nodes_than_gpus_is_an_error_that_names_the_node() -> None:
    with pytest.raises(PlanError, match=r"^c: no GPU of its machine is left"):
        assign_gpus(shared("a", "b", "c", count=2))


def test_two_cpu_nodes_on_one_machine_need_no_gpu() -> None:
    assert assign_gpus(shared("a", "b", count=0)) == {"a": None, "b": None}


def test_a_list_is_taken_before_counts_and_counts_before_the_rest() -> None:
    entries: dict[str, dict[str, Any]] = {"c": {"gpus": ("0",)}, "b": {"gpus": 2}}
    assert assign_gpus(shared("a", "b", "c", entries=entries)) == {"a": uuids(3), "b": uuids(1, 2), "c": uuids(0)}


def test_gpus_are_named_by_index_or_uuid() -> None:
    entries = {"a": {"gpus": ("3", "GPU-same-1")}}
    assert assign_gpus(shared("a", entries=entries)) == {"a": uuids(3, 1)}


def test_no_gpus_can_be_meant() -> None:
    assert assign_gpus(shared("a", entries={"a": {"gpus": 0}})) == {"a": ()}


def test_a_gpu_that_is_not_there_is_named_with_those_that_are() -> None:
    with pytest.raises(PlanError, match=r"^a: clusterddp_gpus names GPU 9, but the host has: 0, 1, 2, 3"):
        assign_gpus(shared("a", entries={"a": {"gpus": ("9",)}}))


def test_a_gpu_claimed_twice_names_both_nodes() -> None:
    entries: dict[str, dict[str, Any]] = {"a": {"gpus": ("0",)}, "b": {"gpus": ("0",)}}
    with pytest.raises(PlanError, match="b and a both claim GPU GPU-same-0"):
        assign_gpus(shared("a", "b", entries=entries))
    assert assign_gpus(shared("a", "b", entries=entries), share=True) == {"a": uuids(0), "b": uuids(0)}


def test_a_missing_gpu_is_noticed_by_the_expected_count() -> None:
    with pytest.raises(PlanError, match="a: clusterddp_gpus expects 8 GPUs, but 7 are there"):
        assign_gpus([node("a", devices=7, entry={"gpus": 8})])


def test_free_takes_gpus_nobody_computes_on() -> None:
    cards = gpus(4, machine="same", busy=(0, 2))
    assert assign_gpus(shared("a", gpus=cards), "free") == {"a": uuids(1, 3)}
    assert assign_gpus(shared("a", gpus=cards), "free:1") == {"a": uuids(1)}
    assert assign_gpus(shared("a", "b", gpus=cards), "free:1") == {"a": uuids(1), "b": uuids(3)}


def test_too_few_free_gpus_is_an_error_with_their_number() -> None:
    cards = gpus(4, machine="same", busy=(0, 1, 2))
    with pytest.raises(PlanError, match=r"a: --gpus free:2, but only 1 of its GPUs are free"):
        assign_gpus(shared("a", gpus=cards), "free:2")
    with pytest.raises(PlanError, match="none of its GPUs is free"):
        assign_gpus(shared("a", count=1, gpus=gpus(1, machine="same", busy=(0,))), "free")


def test_free_gpus_of_a_host_without_any_are_said_to_be_none() -> None:
    with pytest.raises(PlanError, match=r"^a: --gpus free:1, but the host has no GPU"):
        assign_gpus([node("a")], "free:1")


def test_a_number_that_may_be_an_index_or_a_count_is_asked_about() -> None:
    with pytest.raises(UsageError) as caught:
        assign_gpus([node("b", devices=2), *shared("a")], "2")
    assert str(caught.value) == (
        "--gpus 2: the GPU of index 2, or so many? a has more; for the index write --gpus 2, with its comma;"
        " for a number --gpus 0,1 or free:2"
    )
    assert assign_gpus(shared("a"), "2,") == {"a": uuids(2)}
    assert assign_gpus(shared("a"), "0") == assign_gpus(shared("a"), "0,") == {"a": uuids(0)}
    with pytest.raises(PlanError, match=r"^a: --gpus names GPU 4"):
        assign_gpus(shared("a"), "4")
    with pytest.raises(PlanError, match=r"^c: --gpus names GPU 4, but the host has no GPU; leave --gpus out"):
        assign_gpus([node("c", devices=0)], "4")


def test_the_command_line_stands_above_the_inventory() -> None:
    entries = {"a": {"gpus": ("0",)}}
    assert assign_gpus(shared("a", entries=entries), "1,2") == {"a": uuids(1, 2)}
    assert assign_gpus(shared("a", entries=entries), "all") == {"a": None}


def test_a_choice_on_the_command_line_is_shared_by_the_nodes_of_a_machine() -> None:
    assert assign_gpus(shared("a", "b"), "1,3") == {"a": uuids(1), "b": uuids(3)}


@pytest.mark.parametrize("policy", ["free:", "free:0", "free:x", "some", "0,,1", "", "0;1"])
def test_a_policy_that_is_none_is_a_usage_error(policy: str) -> None:
    with pytest.raises(UsageError, match="--gpus"):
        assign_gpus([node(devices=2)], policy)


def test_the_hosts_own_restriction_is_kept_and_chosen_from() -> None:
    nodes = shared("a", visible_devices="2,3")
    assert assign_gpus(nodes) == {"a": None}
    assert assign_gpus(nodes, "3") == {"a": ("3",)}
    with pytest.raises(PlanError, match="has: 2, 3"):
        assign_gpus(nodes, "0")


def test_gpus_without_nvidia_smi_are_known_by_index() -> None:
    rocm = TorchFacts(version="2.7", hip="6.3", device_count=4)
    nodes = [node(name, torch=rocm, boot="same") for name in ("a", "b")]
    assert assign_gpus(nodes) == {"a": ("0", "1"), "b": ("2", "3")}


def test_mig_devices_are_taken_as_they_are_named() -> None:
    cards = gpus(1, machine="same", mig=True)
    assert assign_gpus(shared("a", count=1, gpus=cards)) == {"a": None}
    assert assign_gpus(shared("a", count=1, gpus=cards, entries={"a": {"gpus": ("MIG-7",)}})) == {"a": ("MIG-7",)}


@given(
    st.lists(st.none() | st.integers(0, 3), min_size=1, max_size=4),
    st.integers(0, 8),
    st.sets(st.integers(0, 7), max_size=4),
    st.sampled_from([None, "all", "free", "free:1"]),
)
def test_no_gpu_is_ever_given_to_two_nodes(
    counts: list[int | None], cards: int, busy: set[int], policy: str | None
) -> None:
    names = [f"n{place}" for place in range(len(counts))]
    entries = {name: {"gpus": count} for name, count in zip(names, counts, strict=True)}
    nodes = shared(*names, count=cards, gpus=gpus(cards, machine="same", busy=tuple(busy)), entries=entries)
    try:
        assigned = assign_gpus(nodes, policy)
    except PlanError:
        return
    given_out = [uuid for taken in assigned.values() for uuid in (uuids(*range(cards)) if taken is None else taken)]
    assert len(given_out) == len(set(given_out))


def test_healthy_gpus_are_not_spoken_of() -> None:
    assert check_gpus([node("a", devices=8), node("b", devices=4)]) == []
    assert check_gpus([node("a"), node("b")]) == []


def test_a_gpu_that_torch_does_not_see_is_named() -> None:
    (line,) = check_gpus([node("a", devices=7, gpus=gpus(8), pci_nvidia=8)])
    assert line.startswith("a: torch 2.7.0 does not see all: 7 of 8 GPUs there")


def test_a_container_shows_the_bus_of_its_machine_and_the_gpus_that_it_was_given() -> None:
    assert check_gpus([node("a", devices=2, pci_nvidia=8)]) == []


def test_a_cpu_build_on_a_gpu_host_is_named() -> None:
    (line,) = check_gpus([node("a", torch=TorchFacts(version="2.7.0+cpu"), pci_nvidia=8)])
    assert "is built for CPUs only" in line


def test_gpus_hidden_on_purpose_are_not_missed() -> None:
    assert check_gpus([node("a", devices=1, pci_nvidia=8, visible_devices="3")]) == []
    assert check_gpus([node("a", devices=1, pci_nvidia=8, gpus=gpus(8, mig=True))]) == []


def test_a_failing_nvidia_smi_is_told_in_its_words() -> None:
    (line,) = check_gpus([node("a", nvidia_error="nvidia-smi failed with status 9: no driver")])
    assert line.startswith("a: nvidia-smi failed with status 9: no driver; ")


def test_a_host_without_gpus_among_hosts_with_them_is_named() -> None:
    (line,) = check_gpus([node("a", devices=8), node("b")])
    assert line.startswith("b: torch sees no GPU here, but some on a")


@pytest.mark.parametrize("host", ["b", "fd00::b"])
def test_a_host_whose_driver_fails_is_named_once_among_hosts_with_gpus(host: str) -> None:
    (line,) = check_gpus([node("a", devices=8), node(host, nvidia_error="no driver")])
    assert line.startswith(f"{host}: no driver; ")


def test_gpus_that_do_not_start_are_told() -> None:
    torch = TorchFacts(version="2.7.0", cuda="12.8", device_count=8, device_error="Error 802")
    (line,) = check_gpus([node("a", devices=8, torch=torch)])
    assert "cannot start them: Error 802" in line


@pytest.mark.parametrize("entry", [{"nproc": 1}, {"gpus": 0}])
def test_a_number_states_that_it_is_meant(entry: dict[str, int]) -> None:
    nodes = [node("a", devices=8), node("b", entry=entry, pci_nvidia=8, nvidia_error="broken")]
    assert check_gpus(nodes) == []


def test_what_is_wrong_with_a_torch_is_not_told_again_of_its_gpus() -> None:
    broken = TorchFacts(import_error="ModuleNotFoundError: No module named 'torch'")
    nodes = [node("a", torch=broken), node("b", torch=None, python=None, python_error="no python"), node("c")]
    assert check_gpus(nodes) == []
