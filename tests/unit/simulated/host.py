"""A simulated host: clocks, disk, agent, and the processes of fence and supervisor. What decides is the real code."""

from __future__ import annotations

import functools
import signal
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

from clusterddp.remote.control import last_message
from clusterddp.remote.control.connection import Secret
from clusterddp.remote.shared.run.plan import NodePlan, next_plan
from clusterddp.remote.shared.run.spool_records import Ready
from clusterddp.remote.supervisor.event_loop import Loop
from clusterddp.remote.supervisor.fence import ANSWER_TIME, CHECK_INTERVAL, Fence
from clusterddp.remote.supervisor.fence_pipe import RELEASE, FencePipe
from clusterddp.remote.supervisor.node import Phase, Supervisor
from clusterddp.remote.supervisor.relaunch import Relaunching
from tests.unit.simulated.network import Listener, Selector

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable


from tests.unit.simulated.parts import KEY, QUIET_TURN, Agent, Children, Pipe, Spool


class SimulatedLoop(Loop):
    """The real loop, on the host's selector."""

    def __init__(self, record: Callable[..., Any], host: Host) -> None:
        super().__init__(record)
        self.selector.close()
        self.selector: Any = Selector(host.wake)


class SimulatedRelaunching(Relaunching):
    """The real decisions; the next attempt's spool is in memory."""

    def _make_attempt(self, node: Any, decision: Any) -> Any:
        node.spool.owner.simulation.decided(decision)
        plan = next_plan(node.plan, decision.attempt, decision.members, decision.store)
        self._write_end(node, f"attempt {decision.attempt}")
        ready = (node.inbox.ready or Ready())._replace(store=decision.port)
        return SimulatedAttempt(Spool(node.spool.owner, plan, plan.attempt), ready=ready)


class SimulatedFence(Fence):
    """The real fence's decisions; its loop's turns come from the simulation."""

    host: Host
    answers: Callable[[], None] | None = None
    answers_until = 0.0

    def kill(self) -> bool:
        agent = self.host.agent
        if agent and agent.code is None:
            self.report_action()
            agent.signal(signal.SIGKILL)
            return True
        return False

    @staticmethod
    def reap() -> None: ...

    def turn(self) -> bool:
        """One turn of ``run``; whether the fence goes on."""
        if self.answers:
            self.answers()
            return self.host.boot_clock() < self.answers_until
        if self.read():
            if self.lease == RELEASE:
                return False
            self.act(self.host.boot_clock())
        elif not self.kill():
            self.answers, self.answers_until = self.host.answering(), self.host.boot_clock() + ANSWER_TIME
        return True


class Host:
    """One machine of the run, with what runs there.

    ``simulation`` has the clock, the network and what is told of all hosts.
    """

    def __init__(self, simulation: Any, plan: NodePlan, begins: float) -> None:
        self.simulation, self.first_plan = simulation, plan
        self.clock, self.network, self.random = simulation.clock, simulation.network, simulation.random
        self.address = plan.peers[plan.member].address
        self.offset, self.monotonic_offset = self.random.uniform(100, 1e6), self.random.uniform(100, 1e6)
        self.wall_jump_ns, self.suspended_for = 0, 0.0
        self.on, self.suspended, self.paused, self.fence_paused = True, False, False, False
        self.stalled_until, self.boots, self.due = 0.0, 0, float("inf")
        self.agent: Agent | None = None
        self.verdicts: list[Any] = []
        self.supervisor: Supervisor | None = None
        self.fence: SimulatedFence | None = None
        self.finished = False
        self.unfenced = False  # its fence was killed while its supervisor ran
        self.begins, self.resumed_at = begins, float("-inf")

    # Clocks

    def boot_clock(self) -> float:
        return float(self.clock.now + self.offset)

    def monotonic(self) -> float:
        return float(self.clock.now + self.monotonic_offset - self.suspended_for)

    def time_ns(self) -> int:
        return int((self.clock.now + 1.7e9) * 1e9) + self.wall_jump_ns

    def enter(self) -> None:
        """From now on this host's process runs."""
        self.simulation.running = self
        self.network.sender = self.address

    # Begin

    def begin(self) -> None:
        """The start of fence and supervisor, as supervisor/process.py does it."""
        self.enter()
        self.listener = Listener(self.network, self.address)
        feed, reports = Pipe(), Pipe()
        self.feed, self.reports = feed, reports
        pipe_ends: Any = (feed, reports)
        self.fence = SimulatedFence(1, ("run1", self.first_plan.host), feed, reports, None)  # type: ignore[arg-type]
        self.fence.host = self
        listener: Any = self.listener
        spool: Any = Spool(self, self.first_plan, 1)
        self.supervisor = Supervisor(
            spool,
            {},
            None,
            listener,
            FencePipe(2, *pipe_ends),
        )
        self.supervisor.children.begin()
        self.clock.at(self.clock.now + self.random.uniform(0, CHECK_INTERVAL), self.fence_turn)
        self.wake()

    def start_agent(self, attempt: int) -> int:
        self.agent = Agent(self, attempt, self.random.randrange(1000, 1 << 22), self.clock.now)
        self.simulation.begun(self.agent)
        return self.agent.pid

    def note(self, name: str, fields: dict[str, Any]) -> None:
        self.simulation.note(self, name, fields)

    # Turns

    def wake(self) -> None:
        """Have the supervisor's loop turn soon; a busy machine lets it wait."""
        if self.due < self.clock.now + 0.02:
            return
        busy = self.random.random() < self.simulation.busy
        self._turn_at(self.clock.now + self.random.uniform(0.001, 0.4 if busy else 0.02))

    def _turn_at(self, time: float) -> None:
        if time < self.due:
            self.due = time
            self.clock.at(time, lambda: self.turn(time))

    def turn(self, due: float) -> None:
        if due != self.due:
            return
        self.due = float("inf")
        supervisor = self.supervisor
        if supervisor is None or not self.on or self.suspended or self.paused:
            return
        self.enter()
        supervisor.turn()
        if supervisor.phase is Phase.GONE:
            self.supervisor_ends(released=True)
            return
        self._turn_at(self.clock.now + (0.001 if supervisor.phase_changed else QUIET_TURN))

    def fence_turn(self) -> None:
        if self.fence is None or not self.on:
            return
        if not self.suspended and not self.fence_paused:
            self.enter()
            if not self.fence.turn():
                self.fence_ends()
                return
        self.clock.at(self.clock.now + CHECK_INTERVAL, self.fence_turn)

    # Ends

    def supervisor_ends(self, *, released: bool = False) -> None:
        """By itself, or by SIGKILL: its sockets are closed, its agent dies with it."""
        supervisor, self.supervisor = self.supervisor, None
        if supervisor is None:
            return
        self.boots += 1
        if released:
            self.finished = True
            self.feed.data.append(RELEASE.pack())
        for each in supervisor.loop.selector.sockets():  # type: ignore[attr-defined]
            if each is not self.listener:
                each.close()
        self.listener.selector = None
        self.feed.writer_ended, self.reports.reader_ended = True, True
        if self.agent:
            self.agent.end(-9)
        if self.fence is None:
            self.listener.end()

    def fence_ends(self) -> None:
        self.fence = None
        self.feed.reader_ended, self.reports.writer_ended = True, True
        if self.supervisor is None:
            self.listener.end()

    def power_off(self) -> None:
        self.on = False
        self.network.off.add(self.address)

    def suspend(self, seconds: float) -> None:
        """Sleep: the boot clock goes on, the monotonic one does not."""
        if self.suspended:
            return
        self.suspended = True
        self.network.off.add(self.address)
        self.clock.at(self.clock.now + seconds, lambda: self._resume(seconds))

    def _resume(self, seconds: float) -> None:
        self.suspended, self.suspended_for = False, self.suspended_for + seconds
        self.resumed_at = self.clock.now
        if self.on:
            self.network.off.discard(self.address)
            self.wake()

    def stop_processes(self, seconds: float, names: Iterable[str]) -> None:
        """SIGSTOP, and SIGCONT later."""
        for name in names:
            setattr(self, name, True)
            self.clock.at(self.clock.now + seconds, functools.partial(self._continue, name))

    def _continue(self, name: str) -> None:
        setattr(self, name, False)
        self.wake()

    def answering(self) -> Callable[[], None]:
        """What the fence does after its supervisor's death: the turns of ``last_message.answer``."""
        selector: Any = Selector(lambda: None)
        selector.register(self.listener, 1)
        links: dict[Any, Any] = {}
        secret, listener = Secret(KEY, "run1", self.first_plan.member), cast("Any", self.listener)

        def turn() -> None:
            for key, _ in selector.select(0):
                if key.fileobj is listener:
                    last_message._accept(listener, secret, selector, links)
                    continue
                link = links.get(key.data)
                if link is None:  # closed a moment ago to make room
                    continue
                finished, _answered = last_message._read_and_answer(link)
                if finished:
                    last_message._close_link(link, selector, links)

        return turn


class SimulatedAttempt:
    """What a supervisor has of an attempt."""

    def __init__(self, spool: Spool, *_: object, ready: Ready | None = None) -> None:
        self.spool, self.plan = spool, spool.plan()
        addresses = tuple((peer.address, 29400) for peer in self.plan.peers)
        ready = ready or Ready(store=29500, peers=addresses)
        self.children = Children(spool.owner, self.plan)
        self.inbox = SimpleNamespace(stop=None, ready=ready, lease=0.0, readers=lambda _: {})
        self.index = self.limits = SimpleNamespace(poll=lambda *_: None, finish=lambda *_: None)
