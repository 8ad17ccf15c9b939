"""Facts and the data plane over real helpers: on this machine, and between real hosts of the lab."""

from __future__ import annotations

import contextlib
import sys
import time
from typing import TYPE_CHECKING

import pytest

from clusterddp.errors import HelperError, PlanError
from clusterddp.hosts.ask import clock_offset
from clusterddp.hosts.client import Host
from clusterddp.hosts.fanout import each, values
from clusterddp.hosts.ssh import Connector
from clusterddp.inventory import HostEntry, load
from clusterddp.probe import dial_hosts
from clusterddp.probe.dial_hosts import probe
from clusterddp.probe.gather import survey_network

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    from clusterddp.facts.host import Facts
    from tests.conftest import MakeLab
    from tests.lab import Lab


@contextlib.contextmanager
def opened(entries: Sequence[HostEntry]) -> Iterator[list[Host]]:
    connector = Connector(connect_timeout=10)
    try:
        hosts = values(each(entries, lambda entry: Host.open(entry, connector)))
        with contextlib.ExitStack() as stack:
            yield [stack.enter_context(host) for host in hosts]
    finally:
        connector.close()


def local(state: Path, name: str = "here", **variables: object) -> HostEntry:
    values = {"connection": "local", "state": str(state), "python": sys.executable, **variables}
    return HostEntry(name=name, address=name, **values)  # type: ignore[arg-type]


def facts_of(hosts: list[Host]) -> dict[str, Facts]:
    return {outcome.name: outcome.get() for outcome in probe(hosts)}


def prove_network(hosts: Sequence[Host], facts: Mapping[str, Facts]) -> dict[str, tuple[str, str]]:
    """Interface and address of each host; dials that fail are an error."""
    seen = survey_network(hosts, facts, measured=False)
    assert (seen.error, seen.deaf) == ("", {})
    if seen.failures:
        raise PlanError("; ".join(map(str, seen.failures)))
    return {name: (one.name, one.address) for name, one in seen.where.items()}


def test_the_facts_of_this_machine_come_through_the_helper(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    with opened([local(tmp_path)]) as hosts:
        (outcome,) = probe(hosts)
    facts = outcome.get()
    assert facts.python == sys.executable
    assert facts.torch is not None
    assert facts.torch.version == torch.__version__
    assert abs(facts.clock_offset_ns) <= facts.clock_error_ns + 5_000_000
    assert list((tmp_path / "facts").iterdir())


def test_failing_setup_lines_are_the_hosts_error(tmp_path: Path) -> None:
    with opened([local(tmp_path, setup=("echo no module named cuda >&2; false",))]) as hosts:
        (outcome,) = probe(hosts)
    assert isinstance(outcome.error, HelperError)
    assert str(outcome.error).startswith("here: setup line `echo no module named cuda >&2; false` failed with status 1")


def test_what_the_setup_sets_reaches_torch(tmp_path: Path) -> None:
    entry = local(tmp_path, setup=("export CUDA_VISIBLE_DEVICES=",), python="/bin/false")
    with opened([entry]) as hosts:
        facts = facts_of(hosts)["here"]
    assert facts.visible_devices == ""
    assert facts.python_error == "/bin/false does not run: status 1"


def test_nodes_on_this_machine_meet_on_the_loopback(tmp_path: Path) -> None:
    entries = [local(tmp_path, name, python="/bin/false") for name in ("one", "two")]
    with opened(entries) as hosts:
        found = prove_network(hosts, facts_of(hosts))
    assert found == {"one": ("lo", "127.0.0.1"), "two": ("lo", "127.0.0.1")}


def lab_entries(lab: Lab, **more: dict[str, object]) -> tuple[HostEntry, ...]:
    path = lab.write_inventory(lab.folder / "probe.yaml", more={"all": {"clusterddp_python": "/bin/false"}, **more})
    return load(path).nodes


def test_lab_hosts_are_told_apart_and_meet_on_their_network(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dial_hosts, "DIAL_TIMEOUT", 60.0)
    with opened(lab_entries(lab)) as hosts:
        facts = facts_of(hosts)
        began = time.monotonic()
        found = prove_network(hosts, facts)
        assert time.monotonic() - began < 60, "nothing times out on a healthy network"
    assert found == {host.name: ("eth0", host.address) for host in lab.hosts}
    assert len({one.boot for one in facts.values()}) == len(lab.hosts)
    assert {one.hostname for one in facts.values()} == {host.name for host in lab.hosts}
    assert all(facts[host.name].ssh_address == host.address for host in lab.hosts)
    assert all(one.user == "trainer" for one in facts.values())


def test_the_clocks_of_the_lab_are_one_clock(lab: Lab) -> None:
    with opened(lab_entries(lab)[:1]) as (host,):
        offset, error = clock_offset(host)
    assert abs(offset) <= error + 1_000_000


def test_the_second_network_serves_where_the_first_is_closed(make_lab: MakeLab) -> None:
    lab = make_lab(2, two_networks=True)
    with opened(lab_entries(lab)) as hosts:
        facts = facts_of(hosts)
        assert {name for name, _ in prove_network(hosts, facts).values()} == {"eth0"}
        lab.hosts[0].drop("29400:29499", peer=lab.hosts[1].address)
        found = prove_network(hosts, facts)
    assert {name for name, _ in found.values()} == {"eth1"}
    assert {address.split(".")[1] for _, address in found.values()} == {"78"}


def test_the_inventorys_interface_is_used(make_lab: MakeLab) -> None:
    lab = make_lab(2, two_networks=True)
    entries = lab_entries(lab, gpu00={"clusterddp_interface": "eth1"})
    with opened(entries) as hosts:
        found = prove_network(hosts, facts_of(hosts))
    assert {name for name, _ in found.values()} == {"eth1"}
