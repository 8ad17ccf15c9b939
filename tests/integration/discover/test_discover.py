"""Machines that find rank 0 over a real network: the lab's, healthy and with faults."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import sys
from typing import TYPE_CHECKING

import pytest

from clusterddp.discover import DiscoverOptions, Found, discover
from tests.integration.cli import CLUSTERDDP, Done, Live
from tests.lab.system import command, inside_network, wait_until
from tests.with_torch import need_torch

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from tests.conftest import MakeLab
    from tests.lab import Lab
    from tests.lab.host import LabHost

KEY = "0123456789abcdef0123456789abcdef"
PORTS = range(29400, 29500)


class Ranks:
    """Processes of `clusterddp discover` on lab hosts; all are gone in the end."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._stack = contextlib.ExitStack()

    def start(
        self, host: LabHost, rank: int, size: int, *words: str, job: str = "job7", env: Mapping[str, str] | None = None
    ) -> Live:
        inside = ["nsenter", f"--net=/run/netns/{host.namespace}", "--"]
        options = ["--id", job, "--rank", str(rank), "--world-size", str(size)]
        if "--timeout" not in words:
            options += ["--timeout", "60s"]
        variables = {"PATH": os.environ["PATH"], "HOME": str(self._folder), **(env or {})}
        live = Live([*inside, CLUSTERDDP, "discover", *options, *words], self._folder, variables)
        return self._stack.enter_context(contextlib.closing(live))

    def close(self) -> None:
        self._stack.close()


@pytest.fixture
def ranks(tmp_path: Path) -> Iterator[Ranks]:
    with contextlib.closing(Ranks(tmp_path)) as made:
        yield made


def found(done: Done) -> dict[str, str]:
    """What it printed for a shell."""
    assert done.code == 0, done.err
    values = dict(line.split("=", 1) for line in done.lines)
    assert list(values) == ["MASTER_ADDR", "MASTER_PORT", "LOCAL_ADDR"]
    return values


def failure(done: Done) -> str:
    """The one line that says why, behind the one that says where it looked and what it noticed."""
    assert (done.code, done.out) == (1, ""), done.err
    assert "Traceback" not in done.err
    return done.notes[-1]


def assert_met(ended: list[Done], hosts: list[LabHost], *, card: int = 0) -> None:
    """Rank i ran on host i; all know the first one's address, and a port of the documented range."""
    values = [found(done) for done in ended]
    assert {one["MASTER_ADDR"] for one in values} == {hosts[0].nics[card].address}
    assert [one["LOCAL_ADDR"] for one in values] == [host.nics[card].address for host in hosts]
    (port,) = {int(one["MASTER_PORT"]) for one in values}
    assert port in PORTS


@pytest.mark.parametrize("order", [(0, 1, 2, 3), (3, 1, 2, 0)])
def test_all_find_rank_0_whoever_comes_first(lab: Lab, ranks: Ranks, order: tuple[int, ...]) -> None:
    started = {}
    for rank in order:
        started[rank] = ranks.start(lab.hosts[rank], rank, 4)
        started[rank].wait_for(f"rank {rank} of 4 of job7 on eth0 ({lab.hosts[rank].address})", stream="err")
    ended = [started[rank].end() for rank in range(4)]
    assert_met(ended, lab.hosts)
    assert [len(done.notes) for done in ended] == [1] * 4


def test_many_jobs_at_once_do_not_mix(lab: Lab, ranks: Ranks) -> None:
    """Each host is rank 0 of one job and takes part in all."""
    jobs = [[*lab.hosts[shift:], *lab.hosts[:shift]] for shift in range(4)]
    started = [
        [ranks.start(host, rank, 4, job=f"job{shift}") for rank, host in enumerate(hosts)]
        for shift, hosts in enumerate(jobs)
    ]
    for hosts, job in zip(jobs, started, strict=True):
        assert_met([rank.end() for rank in job], hosts)


def test_they_meet_though_a_third_of_all_datagrams_is_lost(make_lab: MakeLab, ranks: Ranks) -> None:
    lab = make_lab(4)
    for host in lab.hosts:
        host.lose(0.18)  # on the way out and on the way in: 0.82² arrive
    for number in range(3):
        started = [ranks.start(host, rank, 4, job=f"job{number}") for rank, host in enumerate(lab.hosts)]
        assert_met([rank.end() for rank in started], lab.hosts)


def test_a_shell_takes_the_values_over(lab: Lab, ranks: Ranks) -> None:
    other = ranks.start(lab.hosts[0], 0, 2, "--port", "29555")
    line = f'values=$({CLUSTERDDP} discover --id job7 --rank 1 --world-size 2) && eval "$values"'
    script = f"{line} && echo at $MASTER_ADDR:$MASTER_PORT from $LOCAL_ADDR"
    shell = ["nsenter", f"--net=/run/netns/{lab.hosts[1].namespace}", "sh", "-c", script]
    said = command(*shell)
    assert said == f"at {lab.hosts[0].address}:29555 from {lab.hosts[1].address}\n"
    assert found(other.end())["MASTER_PORT"] == "29555"


def test_json_is_one_object(lab: Lab, ranks: Ranks) -> None:
    started = [ranks.start(host, rank, 2, "--json", "--port", "29555") for rank, host in enumerate(lab.hosts[:2])]
    done = [rank.end() for rank in started][1]
    first, second = (host.address for host in lab.hosts[:2])
    expected = {"id": "job7", "rank": 1, "world_size": 2, "master_addr": first, "master_port": 29555}
    assert json.loads(done.out) == {**expected, "local_addr": second}


def test_a_program_gets_them_as_from_python_too(lab: Lab, ranks: Ranks) -> None:
    other = ranks.start(lab.hosts[0], 0, 2)
    options = DiscoverOptions(id="job7", rank=1, world_size=2, timeout=60)
    told = inside_network(lab.hosts[1].namespace, lambda: discover(options))
    values = found(other.end())
    assert told == Found(
        master_addr=values["MASTER_ADDR"], master_port=int(values["MASTER_PORT"]), local_addr=lab.hosts[1].address
    )


def test_a_command_runs_in_its_place_and_the_key_is_not_handed_on(lab: Lab, ranks: Ranks) -> None:
    tells = "import json, os; print(json.dumps([os.getpid(), dict(os.environ)]))"
    env = {"CLUSTERDDP_DISCOVER_KEY": KEY, "KEPT": "yes"}
    started = [
        ranks.start(host, rank, 2, "--", sys.executable, "-c", tells, env=env)
        for rank, host in enumerate(lab.hosts[:2])
    ]
    for rank, live in enumerate(started):
        done = live.end()
        assert done.code == 0, done.err
        pid, told = json.loads(done.out)
        assert pid == live.process.pid
        assert told["MASTER_ADDR"] == lab.hosts[0].address
        assert told["LOCAL_ADDR"] == told["PET_LOCAL_ADDR"] == lab.hosts[rank].address
        assert (told["KEPT"], told["PET_NODE_RANK"], told["PET_NNODES"]) == ("yes", str(rank), "2")
        assert "CLUSTERDDP_DISCOVER_KEY" not in told
        assert KEY not in "".join(told.values())


@pytest.mark.torch
def test_torchrun_needs_no_further_word(lab: Lab, ranks: Ranks, tmp_path: Path) -> None:
    need_torch()
    script = tmp_path / "tells.py"
    names = "('RANK', 'WORLD_SIZE', 'MASTER_ADDR')"
    line = f"' '.join(os.environ[name] for name in {names}) + chr(10)"
    script.write_text(f"import os; os.write(1, ({line}).encode())")  # whole, beside the other worker's
    torchrun = ("--", sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", str(script))
    started = [ranks.start(host, rank, 2, *torchrun) for rank, host in enumerate(lab.hosts[:2])]
    first = lab.hosts[0].address
    for node, done in enumerate([rank.end() for rank in started]):
        assert done.code == 0, done.err
        assert sorted(done.lines) == [f"{2 * node} 4 {first}", f"{2 * node + 1} 4 {first}"]


def test_with_one_key_they_meet_and_others_are_not_believed(lab: Lab, ranks: Ranks, tmp_path: Path) -> None:
    key, wrong = tmp_path / "key", tmp_path / "wrong"
    key.write_text(f"{KEY}\n")
    wrong.write_text(KEY[::-1])
    stranger = ranks.start(lab.hosts[2], 0, 2, "--key-file", str(wrong))  # says that it is rank 0
    keyless = ranks.start(lab.hosts[3], 0, 2)
    for live in (stranger, keyless):
        live.wait_for("rank 0 of 2", stream="err")
    one = ranks.start(lab.hosts[1], 1, 2, "--key-file", str(key))
    for host, reason in ((lab.hosts[2], "it uses another key"), (lab.hosts[3], "it uses no key")):
        one.wait_for(f"{host.address} also speaks of job7, but is not believed: {reason}", stream="err")
    true = ranks.start(lab.hosts[0], 0, 2, env={"CLUSTERDDP_DISCOVER_KEY": f"{KEY}\n"})
    assert_met([true.end(), one.end()], lab.hosts[:2])


def test_a_wrong_key_is_told_as_far_as_can_be_known(lab: Lab, ranks: Ranks) -> None:
    mine, other = {"CLUSTERDDP_DISCOVER_KEY": KEY}, {"CLUSTERDDP_DISCOVER_KEY": KEY[::-1]}
    master = ranks.start(lab.hosts[0], 0, 3, env=mine)
    master.wait_for("rank 0 of 3", stream="err")
    for host, env, reason in (
        (lab.hosts[1], other, "it uses another key"),
        (lab.hosts[2], {}, "it uses a key, this one has none"),
    ):
        said = failure(ranks.start(host, 1, 3, "--timeout", "3", env=env).end())
        assert "rank 0 was not heard within 3 s" in said
        assert f"{lab.hosts[0].address} was not believed: {reason}" in said
        master.wait_for(f"{host.address} also speaks of job7, but is not believed", stream="err")


def test_a_second_rank_0_and_the_first_are_both_told(lab: Lab, ranks: Ranks) -> None:
    started = [ranks.start(host, 0, 3) for host in lab.hosts[:2]]
    for live, other in zip(started, reversed(lab.hosts[:2]), strict=True):
        assert f"another rank 0 with this id is at {other.address}; give each job" in failure(live.end())


def test_who_is_missing_is_named(lab: Lab, ranks: Ranks) -> None:
    assert "ranks 1, 2, 3 of 4 did not answer within 0.5 s; start them with the same --id" in failure(
        ranks.start(lab.hosts[0], 0, 4, "--timeout", "0.5").end()
    )
    ranks.start(lab.hosts[0], 0, 4).wait_for("rank 0 of 4", stream="err")
    said = failure(ranks.start(lab.hosts[2], 2, 4, "--timeout", "4").end())
    assert said.startswith(f"job7 on eth0 ({lab.hosts[2].address}): rank 0 at {lab.hosts[0].address} was heard, ")
    assert "but ranks 1, 3 of 4 did not answer it within 4 s; start them with the same --id" in said


def test_a_port_that_is_taken_is_named(lab: Lab, ranks: Ranks) -> None:
    taken = inside_network(lab.hosts[0].namespace, lambda: socket.create_server(("", 29555)))
    with taken:
        said = failure(ranks.start(lab.hosts[0], 0, 2, "--port", "29555").end())
    assert said == "--port 29555: Address already in use; give another --port, or leave it out"


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_an_interrupted_rank_says_one_line(lab: Lab, ranks: Ranks, number: signal.Signals, code: int) -> None:
    live = ranks.start(lab.hosts[1], 1, 2)
    live.wait_for("rank 1 of 2", stream="err")
    live.process.send_signal(number)
    done = live.end()
    assert (done.code, done.out, done.notes[1:]) == (code, "", ["interrupted"])


def test_an_interrupted_rank_is_missing_at_once(lab: Lab, ranks: Ranks) -> None:
    def missing() -> str:
        return failure(ranks.start(lab.hosts[3], 3, 4, "--timeout", "3").end()).partition("was heard, but ")[2]

    ranks.start(lab.hosts[0], 0, 4).wait_for("rank 0 of 4", stream="err")
    live = ranks.start(lab.hosts[1], 1, 4)
    live.wait_for("rank 1 of 4", stream="err")
    assert missing().startswith("rank 2 of 4 did not answer")
    live.process.send_signal(signal.SIGTERM)
    live.end()
    assert missing().startswith("ranks 1, 2 of 4 did not answer")


def test_the_interface_is_chosen_or_asked_for(make_lab: MakeLab, ranks: Ranks) -> None:
    lab = make_lab(2, two_networks=True)
    said = failure(ranks.start(lab.hosts[0], 0, 2).end())
    assert said == "several network interfaces are up: eth0, eth1; choose one with --interface"
    for card, name in ((0, "eth0"), (1, "eth1")):
        started = [ranks.start(host, rank, 2, "--interface", name) for rank, host in enumerate(lab.hosts)]
        assert_met([rank.end() for rank in started], lab.hosts, card=card)
    # One listens on eth0, the other speaks on eth1: two segments, though both are on the same two machines.
    master = ranks.start(lab.hosts[0], 0, 2, "--interface", lab.hosts[0].nics[0].address, "--timeout", "3")
    other = ranks.start(lab.hosts[1], 1, 2, "--interface", "eth1", "--timeout", "2")
    assert "rank 0 was not heard" in failure(other.end())
    assert "rank 1 of 2 did not answer" in failure(master.end())
    # The kernel sends multicast where a route says so.
    for host in lab.hosts:
        command("ip", "-n", host.namespace, "route", "add", "224.0.0.0/4", "dev", "eth1")
    started = [ranks.start(host, rank, 2) for rank, host in enumerate(lab.hosts)]
    assert_met([rank.end() for rank in started], lab.hosts, card=1)


def test_ranks_of_one_machine_meet_and_a_network_with_ipv6_only_will_do(make_lab: MakeLab, ranks: Ranks) -> None:
    lab = make_lab(2)
    started = [ranks.start(lab.hosts[0], rank, 3) for rank in range(3)]
    assert_met([rank.end() for rank in started], [lab.hosts[0]] * 3)
    started = [ranks.start(lab.hosts[0], rank, 2, "--interface", "lo") for rank in range(2)]
    assert {found(rank.end())["MASTER_ADDR"] for rank in started} == {"127.0.0.1"}
    for number, host in enumerate(lab.hosts):
        command("ip", "-n", host.namespace, "-4", "addr", "flush", "dev", "eth0")
        command("ip", "-n", host.namespace, "addr", "add", f"fd00::{number + 1}/64", "dev", "eth0", "nodad")
    started = [ranks.start(host, rank, 2) for rank, host in enumerate(lab.hosts)]
    values = [found(rank.end()) for rank in started]
    assert [(one["MASTER_ADDR"], one["LOCAL_ADDR"]) for one in values] == [
        ("fd00::1", "fd00::1"),
        ("fd00::1", "fd00::2"),
    ]


def test_a_firewall_is_told_apart_by_which_way_it_stops(make_lab: MakeLab, ranks: Ranks) -> None:
    lab = make_lab(2)
    first, second = lab.hosts
    ranks.start(first, 0, 2).wait_for("rank 0 of 2", stream="err")
    first.drop(29400, proto="udp", direction="in")
    said = failure(ranks.start(second, 1, 2, "--timeout", "3").end())
    assert f"rank 0 at {first.address} is heard but did not hear this one within 3 s; look for a firewall" in said
    first.heal()
    second.drop(29400, proto="udp", direction="out")  # such a rule answers the sender with an error
    said = failure(ranks.start(second, 1, 2, "--timeout", "3").end())
    assert "is heard but did not hear this one" in said
    assert "sending failed: Operation not permitted" in said


def test_a_cable_that_is_out_for_a_while_does_no_harm(make_lab: MakeLab, ranks: Ranks) -> None:
    lab = make_lab(3)
    started = [ranks.start(host, rank, 3) for rank, host in enumerate(lab.hosts[:2])]
    for rank, live in enumerate(started):
        live.wait_for(f"rank {rank} of 3", stream="err")
    lab.hosts[1].cut()
    started.append(ranks.start(lab.hosts[2], 2, 3))
    started[2].wait_for("rank 2 of 3", stream="err")
    assert started[0].process.poll() is None
    lab.hosts[1].heal()
    wait_until("all have met", lambda: all(live.process.poll() is not None for live in started), timeout=60)
    assert_met([live.end() for live in started], lab.hosts)
