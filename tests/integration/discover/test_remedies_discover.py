"""What `discover` tells a user to type is typed as it was printed, and the machines meet; on the loopback alone."""

from __future__ import annotations

import contextlib
import os
import socket
import threading
import time
from typing import TYPE_CHECKING

import pytest

from clusterddp.discover.announcer import Announcer
from clusterddp.discover.message import Codec, Message
from clusterddp.discover.outcome import UDP_PORT
from clusterddp.discover.segment import GROUPS, Segment, choose_interface
from tests.integration.cli import User
from tests.remedies import remedy, type_line

if TYPE_CHECKING:
    from pathlib import Path

TWO_CARDS = """
ip link set lo up
ip link add d0 type veth peer name d1
ip addr add 10.1.1.1/24 dev d0
ip addr add 10.1.2.1/24 dev d1
ip link set d0 up
ip link set d1 up
"""


@pytest.fixture
def user(tmp_path: Path) -> User:
    return User(tmp_path)


def line(user: User, rank: int, size: int) -> str:
    """The line of a rank; its job is this test's own."""
    job = f"{os.getpid()}-{user.home.parent.name}"[:60]
    return f"clusterddp discover --interface lo --id {job} --rank {rank} --world-size {size} --timeout 60s"


def words(user: User, rank: int, size: int) -> list[str]:
    return line(user, rank, size).split()[1:]


def assert_met(user: User, typed: str, **env: str) -> None:
    done = type_line(user, typed, **env)
    assert done.code == 0, done.err
    assert "MASTER_ADDR=" in done.out


KEY = remedy("discover/__init__.py", "{} are the fewest; `openssl rand -hex 32` makes a good one")
PORT = remedy("discover/__init__.py", "give another --port, or leave it out")
HELD = remedy("discover/segment.py", "end the program that has it: `ss -lunp` shows it")
CARD = remedy("discover/segment.py", "choose one with --interface")
SIZES = remedy("discover/seeker.py", "give the same --world-size everywhere")
RANKS = remedy("discover/seeker.py", "give each machine its own --rank")
JOBS = remedy("discover/announcer.py", "give each job an --id of its own, and each machine its own --rank")


def test_the_key_that_the_told_command_makes_is_taken(user: User) -> None:
    short = type_line(user, line(user, 0, 1), CLUSTERDDP_DISCOVER_KEY="short")
    (command,) = KEY.commands(short.err)
    assert_met(user, f"CLUSTERDDP_DISCOVER_KEY=$({command}) {line(user, 0, 1)}")


def test_a_port_that_is_taken_is_left_for_another(user: User) -> None:
    with socket.create_server(("", 0)) as first:
        taken = first.getsockname()[1]
        refused = type_line(user, f"{line(user, 0, 1)} --port {taken}")
        assert PORT.found(refused.err)
        with socket.create_server(("", 0)) as second:
            free = second.getsockname()[1]
        assert_met(user, f"{line(user, 0, 1)} --port {free}")
        assert_met(user, line(user, 0, 1))


def test_the_program_that_has_the_udp_port_is_shown_by_the_told_command(user: User) -> None:
    """In a network of its own: the port is one for all jobs of a machine."""
    if os.geteuid():
        pytest.skip("root alone makes a network")
    hold = f"import socket; s = socket.socket(2, 2); s.bind(({GROUPS[4]!r}, {UDP_PORT})); print(1, flush=True); input()"
    user.write("hold.py", hold)
    script = f"""
ip link set lo up
coproc HOLD {{ exec python3 hold.py; }}
read -r -u "${{HOLD[0]}}"
{line(user, 0, 1)}
ss -lunp
kill $HOLD_PID
wait $HOLD_PID
{line(user, 0, 1)}
"""
    user.write("steps.sh", script)
    done = type_line(user, "unshare --net bash steps.sh")
    assert HELD.commands(done.err) == ["ss -lunp"]
    assert f":{UDP_PORT} " in done.out
    assert "python3" in done.out
    assert "MASTER_ADDR=127.0.0.1" in done.out


def test_one_of_several_cards_is_chosen_by_its_name(user: User) -> None:
    if os.geteuid():
        pytest.skip("root alone makes a network")
    user.write("steps.sh", f"{TWO_CARDS}{line(user, 0, 1).replace('--interface lo ', '')} $*")
    assert CARD.found(type_line(user, "unshare --net bash steps.sh").err)
    assert_met(user, "unshare --net bash steps.sh --interface d0")


def test_ranks_with_the_same_world_size_meet(user: User) -> None:
    with user.start(*words(user, 0, 2)) as master:
        assert SIZES.found(type_line(user, line(user, 1, 3)).err)
        assert_met(user, line(user, 1, 2))
        assert master.end().code == 0


def test_machines_with_ranks_of_their_own_meet(user: User) -> None:
    with user.start(*words(user, 0, 3)) as master, user.start(*words(user, 1, 3)) as first:
        first.wait_for("rank 1 of 3", stream="err")
        master.wait_for("rank 0 of 3", stream="err")
        said = type_line(user, line(user, 1, 3)).err
        if RANKS.text not in said:  # this one came to rank 0 before the other
            said = first.end().err
        assert RANKS.found(said)


def test_a_second_job_with_an_id_of_its_own_begins(user: User) -> None:
    with user.start(*words(user, 0, 2)) as first:
        first.wait_for("rank 0 of 2", stream="err")
        second = type_line(user, line(user, 0, 2))
        assert JOBS.found(second.err), second.err
    assert_met(user, line(user, 0, 1).replace("--id ", "--id x"))


AGAIN = remedy("discover/seeker.py", "start all again, each machine with its own --rank")
OTHER_CARD = remedy("discover/segment.py", "choose another --interface")
NO_IPV4_MULTICAST = """
ip link set lo up
ip link add d0 type veth peer name d1
echo 0 >/proc/sys/net/ipv4/igmp_max_memberships
ip addr add 10.1.1.1/24 dev d0
ip addr add fd00::1/64 dev d1 nodad
ip link set d0 up
ip link set d1 up
"""


def other_rank_1_is_met(job: str, ended: threading.Event) -> None:
    """Rank 0 that has met another rank 1, and says so until the one that waits has given up."""
    codec, now = Codec(id=job, key=None), time.monotonic()
    master = Announcer(nonce="1" * 16, world_size=2, address="127.0.0.1", port=29500, now=now, timeout=60)
    answer = Message(kind="answer", sender="0" * 16, to=master.nonce, rank=1, world_size=2, address="127.0.0.1")
    master.receive(answer, now)
    (met,) = master.tick(now)
    assert met.complete
    with contextlib.closing(Segment(choose_interface("lo"))) as segment:
        while not ended.wait(0.05):
            segment.send(codec.encode(met))


def test_machines_meet_once_all_are_started_again_with_ranks_of_their_own(user: User) -> None:
    job = line(user, 1, 2).split("--id ")[1].split()[0]
    ended = threading.Event()
    talks = threading.Thread(target=other_rank_1_is_met, args=(job, ended))
    talks.start()
    try:
        late = type_line(user, line(user, 1, 2).replace("60s", "3s"))
    finally:
        ended.set()
        talks.join(60)
    assert AGAIN.found(late.err), late.err
    with user.start(*words(user, 0, 2)) as first:
        assert_met(user, line(user, 1, 2))
        assert first.end().code == 0


def test_another_card_takes_the_place_of_one_without_multicast(user: User) -> None:
    """In a network of its own, where the kernel takes no more members of groups by IPv4; the other card has IPv6."""
    if os.geteuid():
        pytest.skip("root alone makes a network")
    user.write("steps.sh", f"set -e\n{NO_IPV4_MULTICAST}{line(user, 0, 1).replace('--interface lo ', '')} $*")
    assert OTHER_CARD.found(type_line(user, "unshare --net bash steps.sh --interface d0").err)
    assert_met(user, "unshare --net bash steps.sh --interface d1")
