"""What a change of leader, a thousand changes at once and their heartbeats cost the loop of a run's leader.

One real leader (its Control and Membership), NODES - 2 followers over real connections on the loopback, the first node
is gone. Only the leader's own time is counted, not that of its followers in the same process.

    python benchmarks/bench_control.py [NODES]
"""

from __future__ import annotations

import resource
import selectors
import socket
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from clusterddp.remote.control import leader as control_leader  # noqa: E402 - in the project
from clusterddp.remote.control.connection import PeerConnection, Secret  # noqa: E402
from clusterddp.remote.control.control_events import Lost  # noqa: E402
from clusterddp.remote.control.leader import Control  # noqa: E402
from clusterddp.remote.control.membership import Membership  # noqa: E402
from clusterddp.remote.control.messages import (  # noqa: E402
    Accept,
    Heartbeat,
    Hello,
    NodeState,
    NodeStatus,
    StatusMessage,
)

KEY, LEADER = b"k" * 32, 1
RUNNING = NodeStatus(NodeState.RUNNING, 1)
ENDED = NodeStatus(NodeState.ENDED, 1, 1, cause="RuntimeError: NCCL communicator was aborted on rank 17")


class Leader:
    """The leader, and the time that its loop took."""

    def __init__(self, count: int) -> None:
        self.selector, self.lost, self.saved = selectors.DefaultSelector(), 0, 0
        listener = socket.socket()
        listener.bind(("127.0.0.1", 0))
        listener.listen(4096)
        self.address = listener.getsockname()
        self.control = Control(Secret(KEY, "run", LEADER), self.selector, self._handle, listener)
        names = [f"gpu{member:04}" for member in range(count)]
        self.membership = Membership(self.control, names, lambda *_: None, self._save)
        self.control.begin([self.address] * count)
        self.membership.begin(1, range(count), limit=7.5, by_majority=True)
        self.control.leader = LEADER
        for member in range(count):
            self.membership.statuses[member], self.membership.reported_at[member] = RUNNING, 0.0
        self.turns: list[float] = []

    def _handle(self, event: object) -> None:
        self.lost += isinstance(event, Lost)
        self.membership.handle_event(event)  # type: ignore[arg-type]

    def _save(self, _: object) -> None:
        self.saved += 1

    def turn(self) -> bool:
        """One turn of its loop; whether it had anything to do."""
        began = time.thread_time()  # other programs are busy too
        ready = self.selector.select(0)
        for key, _ in ready:
            key.data()
        self.control.turn()
        self.membership.turn(time.clock_gettime(time.CLOCK_BOOTTIME))
        self.turns.append(time.thread_time() - began)
        return bool(ready)


class Followers:
    """All the others, as simple as they can be."""

    def __init__(self, leader: Leader, count: int) -> None:
        self.leader, self.received = leader, 0
        self.selector = selectors.DefaultSelector()
        self.links = [self._call(member) for member in range(2, count)]
        self.accepted: set[int] = set()

    def _call(self, member: int) -> PeerConnection:
        caller = socket.socket()
        caller.bind((f"127.1.{member >> 8}.{member & 255 or 1}", 0))
        caller.setblocking(False)
        caller.connect_ex(self.leader.address)
        link = PeerConnection(caller, Secret(KEY, "run", member), LEADER)
        self.selector.register(caller, selectors.EVENT_READ, link)
        return link

    def turn(self) -> bool:
        """Answer what has come; whether anything had."""
        ready = self.selector.select(0)
        for key, _ in ready:
            link: PeerConnection = key.data
            if link.secret.member in self.accepted:
                data = link.socket.recv(1 << 20)
                self.received += len(data)
                if not data:
                    self.selector.unregister(link.socket)
                continue
            if not link.receive():
                self.selector.unregister(link.socket)
                continue
            message = link.next()
            if isinstance(message, Hello):
                link.introduce(message)
            elif isinstance(message, Accept):
                link.check_accept(message)
                self.accepted.add(link.secret.member)
                link.send(StatusMessage(RUNNING, 1.0, 0))
                self._beat(link)
        return bool(ready)

    def _beat(self, link: PeerConnection) -> None:
        link.send(Heartbeat(majority=True, number=link.echoes.record_sent(0.0), echo=0, age=1.0))

    def beat(self) -> None:
        """Send a heartbeat of each."""
        for link in self.links:
            self._beat(link)

    def end(self) -> None:
        """Send a new status of each."""
        for link in self.links:
            link.send(StatusMessage(ENDED, 1.0, 0))


def measure(what: str, leader: Leader, followers: Followers) -> None:
    """Turn both until all is quiet, and print what it took."""
    leader.turns.clear()
    followers.received, leader.saved, quiet_since = 0, 0, time.monotonic()
    while time.monotonic() - quiet_since < 0.5:  # beyond the time in which the leader gathers what is new
        busy = [followers.turn(), leader.turn()]
        if any(busy):
            quiet_since = time.monotonic()
        else:
            leader.turns.pop()
            time.sleep(0.001)
    print(
        f"{what:<28} {sum(leader.turns):6.2f} s in all, {max(leader.turns) * 1000:6.0f} ms the longest turn, "
        f"{followers.received / 1e6:7.1f} MB, {len(leader.turns):5} turns, {leader.saved:4} saved, {leader.lost} lost"
    )


def main() -> None:
    """Measure and print."""
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 1000
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    control_leader.SILENCE_TIMEOUT_TCP = 1e6  # the followers have no clock
    leader = Leader(count)
    followers = Followers(leader, count)
    measure("change of leader", leader, followers)
    print(f"{'':<28} {len(followers.accepted)} of {count - 2} are led")
    followers.beat()
    measure("a heartbeat of each", leader, followers)
    followers.end()
    measure("a new status of each", leader, followers)


if __name__ == "__main__":
    main()
