"""What a job started by hand would choose: predicted from facts, and what the doctor says of it."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from clusterddp.checks.engine import select
from clusterddp.checks.evidence import Answer
from clusterddp.checks.needs import ELECTION, HEALTH
from clusterddp.errors import HelperError
from clusterddp.facts.host import TorchFacts
from clusterddp.facts.library_defaults import gloo_interfaces, nccl_interfaces, own_endpoints
from clusterddp.remote.shared.probes.health_records import Lookup
from tests.unit.evidence_made import cluster, judged, seen, with_answers, wrong
from tests.unit.facts_made import gpus, interface, node

if TYPE_CHECKING:
    from clusterddp.checks.evidence import Evidence, HostEvidence
    from clusterddp.facts.host import Facts, Interface

NAMES = ("gpu01", "gpu02", "gpu03")
LO = interface("127.0.0.1", "lo", prefix=8)
ETH = interface("10.0.0.2")
DOCKER = interface("172.17.0.1", "docker0", prefix=16)


def facts(*addresses: Interface, **environment: str) -> Facts:
    return node("gpu02", addresses=addresses, environment=environment)[1]


# (addresses in the kernel's order, environment, the cards NCCL takes)
NCCL: list[tuple[tuple[Interface, ...], dict[str, str], tuple[str, ...]]] = [
    ((LO, ETH), {}, ("eth0",)),
    ((LO, ETH, interface("10.1.0.2", "ib0")), {}, ("ib0",)),
    ((LO, DOCKER, ETH, interface("10.2.0.2", "br-1")), {}, ("eth0", "br-1")),
    ((LO, DOCKER), {}, ("docker0",)),
    ((LO,), {}, ("lo",)),
    ((interface("192.168.122.1", "virbr0"),), {}, ("virbr0",)),
    ((LO, ETH, interface("10.1.0.2", "eth1")), {"NCCL_COMM_ID": "10.1.0.9:4000"}, ("eth1",)),
    ((LO, ETH), {"NCCL_COMM_ID": "nonsense"}, ("eth0",)),
    ((LO, ETH, interface("10.1.0.2", "eth1")), {"NCCL_SOCKET_IFNAME": "=eth1"}, ("eth1",)),
    ((LO, ETH, interface("10.1.0.2", "ib0")), {"NCCL_SOCKET_IFNAME": "eth"}, ("eth0",)),
    ((LO, ETH), {"NCCL_SOCKET_IFNAME": "eno1"}, ()),
    ((LO, interface("10.9.0.2", "eth9", up=False), ETH), {}, ("eth0",)),
    ((interface("fd00::2", "eth1", prefix=64), ETH), {"NCCL_SOCKET_FAMILY": "AF_INET"}, ("eth0",)),
]


@pytest.mark.parametrize(("addresses", "environment", "cards"), NCCL, ids=[f"{row[2]} {row[1]}" for row in NCCL])
def test_nccl_takes_cards_in_its_own_order(
    addresses: tuple[Interface, ...], environment: dict[str, str], cards: tuple[str, ...]
) -> None:
    assert nccl_interfaces(facts(*addresses, **environment)) == cards


def test_a_card_in_nccls_configuration_file_is_the_one_it_takes() -> None:
    faster = interface("10.1.0.2", "ib0")
    found = node("gpu02", addresses=(LO, ETH, faster), settings={"NCCL_SOCKET_IFNAME": "eth0"})[1]
    assert nccl_interfaces(found) == ("eth0",)
    assert nccl_interfaces(replace(found, environment={"NCCL_SOCKET_IFNAME": "ib0"})) == ("ib0",)


def test_gloo_takes_the_card_of_the_hosts_own_name() -> None:
    found = facts(LO, ETH, DOCKER)
    assert gloo_interfaces(found, Lookup(addresses=("10.0.0.2",))) == ("eth0",)
    assert gloo_interfaces(found, Lookup(addresses=("127.0.0.1",))) == ("lo",)
    assert gloo_interfaces(found, Lookup(addresses=("10.9.9.9",))) == ()
    assert gloo_interfaces(found, None) == ()
    assert gloo_interfaces(facts(LO, ETH, GLOO_SOCKET_IFNAME="eth0"), None) == ("eth0",)


def with_card(*cards: Interface, devices: int = 2) -> Evidence:
    """Three hosts with GPUs, the second of them with more cards."""
    own: dict[str, Any] = {"addresses": (LO, *cards, ETH), "gpus": gpus(2, machine="gpu02")}
    return cluster(
        seen("gpu02", *NAMES, devices=devices, **own), *(seen(name, *NAMES, devices=devices) for name in NAMES[::2])
    )


def said(evidence: Evidence, check: str) -> list[tuple[str, tuple[str, ...], str]]:
    return [(one.verdict, one.hosts, one.message) for one in wrong(evidence) if one.name == check]


def test_another_card_that_nccl_would_take_first_is_told_with_the_one_that_runs_set() -> None:
    ((verdict, hosts, message),) = said(with_card(interface("10.7.0.2", "br-1a2b")), "card-choice")
    assert (verdict, hosts) == ("warn", ("gpu02",))
    assert message == "NCCL by itself would take br-1a2b; runs of clusterddp set eth0"


def test_a_tunnel_that_nccl_would_use_beside_the_right_card_is_told() -> None:
    own: dict[str, Any] = {
        "addresses": (LO, ETH, interface("100.64.0.2", "tailscale0"), interface("169.254.3.1", "usb0"))
    }
    made = cluster(*(seen(name, *NAMES, devices=2, **(own if name == "gpu02" else {})) for name in NAMES))
    ((_, hosts, message),) = said(made, "card-choice")
    assert (hosts, message) == (
        ("gpu02",),
        "NCCL by itself would also use tailscale0, usb0; runs of clusterddp set eth0",
    )


def test_without_gpus_nobody_uses_nccl_and_with_a_setting_it_does_not_choose() -> None:
    assert said(with_card(interface("10.7.0.2", "br-1a2b"), devices=0), "card-choice") == []
    own: dict[str, Any] = {"addresses": (LO, DOCKER, ETH), "environment": {"NCCL_SOCKET_IFNAME": "=docker0"}}
    assert said(cluster(seen("gpu02", *NAMES, devices=2, **own)), "card-choice") == []


def test_a_name_on_another_card_is_what_gloo_would_take() -> None:
    healthy = HEALTH.of(seen("gpu02", *NAMES))
    assert healthy
    names = {**healthy.names, "gpu02": Lookup(addresses=("172.17.0.1",))}
    sick = seen("gpu02", *NAMES, addresses=(LO, ETH, DOCKER), health={"names": names})
    ((_, hosts, message),) = said(cluster(sick), "card-choice")
    assert (hosts, message) == (("gpu02",), "gloo by itself would take docker0; runs of clusterddp set eth0")


def electing(**takers: dict[str, bool]) -> Evidence:
    """Three hosts asked for ``gpu01`` and 10.0.0.1; the first is it, unless told otherwise."""
    well = {name: {"gpu01": name == "gpu01", "10.0.0.1": name == "gpu01"} for name in NAMES}
    return cluster(*(with_answers(seen(name, *NAMES), {ELECTION: {**well, **takers}[name]}) for name in NAMES))


def test_one_host_that_takes_itself_for_the_endpoint_passes() -> None:
    assert wrong(electing()) == []


def test_an_endpoint_for_which_no_host_takes_itself_is_told_with_the_first_host() -> None:
    ((verdict, hosts, message),) = said(electing(gpu01={"gpu01": True, "10.0.0.1": False}), "host-election")
    assert (verdict, hosts) == ("warn", ("gpu01",))
    assert message == "no host takes itself for 10.0.0.1 (runs of clusterddp pin it)"


def test_a_name_that_is_the_loopback_is_told_as_the_cause() -> None:
    healthy = HEALTH.of(seen("gpu01", *NAMES))
    assert healthy
    names = {**healthy.names, "gpu01": Lookup(addresses=("127.0.1.1",))}
    first = with_answers(seen("gpu01", *NAMES, health={"names": names}), {ELECTION: {"10.0.0.1": False}})
    ((_, hosts, message),) = said(cluster(first), "host-election")
    assert hosts == ("gpu01",)
    assert message.startswith("no host takes itself for 10.0.0.1: its own name means 127.0.1.1 there")


def test_a_second_host_that_takes_itself_for_the_endpoint_is_the_one_named() -> None:
    ((verdict, hosts, message),) = said(electing(gpu03={"gpu01": True, "10.0.0.1": False}), "host-election")
    assert (verdict, hosts) == ("warn", ("gpu03",))
    assert message == "takes itself for gpu01, which is gpu01 (runs of clusterddp pin it)"


def test_nodes_of_one_machine_all_may_be_it() -> None:
    twins = [with_answers(seen(name, *NAMES, boot="b"), {ELECTION: {"gpu01": True}}) for name in NAMES]
    assert said(cluster(*twins), "host-election") == []


def test_a_host_that_could_not_be_asked_is_unknown_and_one_without_names_is_skipped() -> None:
    missing_data = with_answers(seen("gpu02", *NAMES), {ELECTION: Answer(error="ImportError: no torch")})
    ((verdict, hosts, message),) = said(cluster(missing_data), "host-election")
    assert (verdict, hosts, message) == ("unknown", ("gpu02",), "could not look: ImportError: no torch")
    silent = Lookup(error="no answer within 4 s")
    has_failed_lookups: HostEvidence = seen("gpu02", *NAMES, health={"names": dict.fromkeys(NAMES, silent)})
    assert said(cluster(with_answers(has_failed_lookups, {ELECTION: {"gpu01": True}})), "host-election") == []


def test_what_a_host_answers_is_checked() -> None:
    assert own_endpoints("gpu01", {"matches": {"gpu01": True}, "error": None}) == {"gpu01": True}
    data: Any
    for data in ({"matches": {}, "error": "no answer within 6 s"}, {"matches": {"gpu01": 1}, "error": None}, []):
        with pytest.raises(HelperError, match="gpu01"):
            own_endpoints("gpu01", data)


def test_an_election_that_a_dead_name_server_keeps_waiting_is_told_by_its_cause_alone() -> None:
    silent = dict.fromkeys(NAMES, Lookup(error="no answer within 4 s"))
    waits = seen("gpu02", *NAMES, health={"names": silent})
    waits = with_answers(waits, {ELECTION: Answer(error="no answer within 6 s")})
    assert said(cluster(waits), "host-election") == []
    busy = with_answers(seen("gpu02", *NAMES), {ELECTION: Answer(error="no answer within 6 s")})
    assert said(cluster(busy), "host-election") == [("unknown", ("gpu02",), "could not look: no answer within 6 s")]


def test_without_the_first_host_nobody_is_judged_in_its_place() -> None:
    torch = TorchFacts(import_error="ModuleNotFoundError: No module named 'torch'")
    first = with_answers(seen("gpu01", *NAMES, torch=torch), {ELECTION: Answer(error="no torch")})
    answers = {ELECTION: {"gpu01": False, "10.0.0.1": False}}
    evidence = cluster(first, *(with_answers(seen(name, *NAMES), answers) for name in NAMES[1:]))
    results = [one for one in judged(evidence, select(["host-election"])) if one.name == "host-election"]
    assert [(one.verdict, one.hosts, one.message) for one in results] == [
        ("skipped", ("gpu01",), "because of torch"),
        ("skipped", ("gpu02", "gpu03"), "the first host cannot be judged"),
    ]
