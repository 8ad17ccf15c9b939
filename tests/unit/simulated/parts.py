"""What a simulated host has: pipes, an agent, a spool and its disk, a supervisor's children."""

from __future__ import annotations

import signal
from collections import deque
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from clusterddp.remote.rendezvous.participants import LeaseListener
from clusterddp.remote.shared.run.spool_records import ExitRecord
from clusterddp.remote.supervisor.file_work import RESULT_TIMEOUT, FileResult
from clusterddp.remote.supervisor.node import TURN_INTERVAL

if TYPE_CHECKING:
    from collections.abc import Callable

    from clusterddp.remote.rendezvous.participants import Participants
    from clusterddp.remote.shared.run.plan import NodePlan
    from tests.unit.simulated.host import Host

KEY = b"k" * 32
QUIET_TURN = 2 * TURN_INTERVAL  # a loop may be late, and half of the turns cost half of the time
AGENT_TICK = 0.2  # seconds between two looks of an agent at its lease


class Pipe:
    """A pipe between supervisor and fence."""

    def __init__(self) -> None:
        self.data: deque[bytes] = deque()
        self.writer_ended = self.reader_ended = False

    def write(self, data: bytes) -> int:
        if self.reader_ended:
            raise BrokenPipeError
        self.data.append(data)
        return len(data)

    def read(self, _: int) -> bytes:
        if self.data:
            return self.data.popleft()
        if self.writer_ended:
            return b""
        raise BlockingIOError


@dataclass(eq=False)
class Agent:
    """A node's agent and its workers: they obey signals, and the lease that the real listener reads."""

    host: Host
    attempt: int
    pid: int
    began: float
    code: int | None = None  # its exit code once it has ended
    stubborn: bool = False  # ignores SIGTERM
    ending: bool = False
    lease: LeaseListener = field(init=False)

    def __post_init__(self) -> None:
        pipe: Any = SimpleNamespace(setblocking=lambda _: None)
        self.lease = LeaseListener(pipe, self.signal)
        self.host.clock.at(self.began, self.tick)

    @property
    def runs(self) -> bool:
        return self.code is None and self.host.on and not self.host.suspended

    def tick(self) -> None:
        """Obey the lease."""
        if self.code is None and self.host.on:
            self.host.enter()
            if not self.host.suspended:
                self.lease.obey()
            self.host.clock.at(self.host.clock.now + AGENT_TICK, self.tick)

    def signal(self, number: int) -> None:
        if number == signal.SIGKILL:
            self.end(-9)
        elif not self.ending and not self.stubborn:
            self.ending = True
            self.ends_after(self.host.random.uniform(0.05, 0.9), 1)

    def ends_after(self, seconds: float, code: int) -> None:
        self.host.clock.at(self.host.clock.now + seconds, lambda: self._end_when_awake(code))

    def _end_when_awake(self, code: int) -> None:
        if self.host.suspended:
            self.ends_after(1.0, code)
        else:
            self.end(code)

    def end(self, code: int) -> None:
        if self.code is None:
            self.code = code
            self.host.wake()


class Spool:
    """A node's files, in memory."""

    run = "run1"

    def __init__(self, host: Host, plan: NodePlan, attempt: int) -> None:
        self.owner, self.made, self.attempt, self.host = host, plan, attempt, plan.host
        self.exit: ExitRecord | None = None
        self.folder = self.logs = self.code = ""

    def plan(self) -> NodePlan:
        return self.made

    def control_key(self) -> bytes:
        return KEY

    def event(self, name: str, **fields: Any) -> None:
        self.owner.note(name, fields)

    def exit_record(self) -> ExitRecord | None:
        return self.exit

    def write_exit(self, state: str, exit_code: int, reason: str, **fields: Any) -> None:
        known = {name: value for name, value in fields.items() if name in ExitRecord._fields}
        self.exit = ExitRecord(state, exit_code, reason, **known)

    def make_exit_final(self, reason: str) -> None:
        if self.exit:
            self.exit = self.exit._replace(pending=False, final=reason)

    def write_verdict(self, verdict: Any) -> None:
        self.owner.simulation.kept(self.owner, verdict)
        self.owner.verdicts.append(verdict)

    def stop_order(self) -> None:
        return None

    def drop_secrets(self) -> None: ...

    write_peers = write_stop_order = write_plan = lambda *_: None


class Work:
    """A supervisor's file work: in order, each job as slow as the disk is; a stalled disk does none."""

    def __init__(self, host: Host) -> None:
        self.host = host
        self._asked: dict[str, list[Any]] = {}
        self._free_at = 0.0

    def _later(self, job: Callable[[], object]) -> None:
        self._free_at = max(self._free_at, self.host.clock.now) + self.host.random.uniform(0.001, 0.02)
        self._at(self._free_at, self.host.boots, job)

    def _at(self, time: float, boots: int, job: Callable[[], object]) -> None:
        self.host.clock.at(time, lambda: self._do(boots, job))

    def _do(self, boots: int, job: Callable[[], object]) -> None:
        host = self.host
        if boots != host.boots or not host.on:
            return
        if host.suspended or host.paused or host.stalled_until > host.clock.now:
            self._free_at = max(host.stalled_until, host.clock.now + 0.2)
            self._at(self._free_at, boots, job)
            return
        host.enter()
        job()

    def do(self, job: Callable[[], object]) -> None:
        self._later(job)

    def queue_latest(self, *_: Any) -> None:
        """What is read and written at every turn concerns no other host."""

    def event(self, spool: Spool, name: str, **fields: Any) -> None:
        spool.event(name, **fields)

    def record_event(self, *_: Any, **__: Any) -> Callable[[], bool]:
        done: list[bool] = []
        self._later(lambda: done.append(True))
        return lambda: bool(done)

    def ask(self, name: str, work: Callable[[], Any]) -> Any:
        if name not in self._asked:
            job = self._asked[name] = [self.host.boot_clock(), False, None]

            def run() -> None:
                job[1:] = [True, work()]
                self.host.wake()

            self._later(run)
        asked_at, done, value = self._asked[name]
        if not done:
            if self.host.boot_clock() - asked_at > RESULT_TIMEOUT:
                raise TimeoutError(f"{name} is held up: a disk does not answer")
            return None
        del self._asked[name]
        return FileResult(value)

    def is_asked(self, name: str) -> bool:
        return name in self._asked

    def failing_since(self) -> float:
        """Nothing fails: a stalled disk only waits."""
        return float("inf")

    def close(self, _: float) -> None: ...


class Children:
    """A supervisor's children: the simulated agent, and on the store's host a store."""

    def __init__(self, host: Host, plan: NodePlan) -> None:
        self.host, self.plan, self.spool = host, plan, None
        self.agent: int | None = None
        self.agent_exit: int | None = None
        self.start_deadline = float("inf")
        self.start_error, self.store_died = "", False
        self.informed: Participants | None = None  # the newest message, in the agent's socket before it starts
        self.store = 1 if plan.store_member == plan.member else None
        self.killed: set[tuple[int, int]] = set()
        self.environment: dict[str, str] = {}
        self.roster = SimpleNamespace(poll=lambda: None, update=lambda: None)

    def start_agent(self, _: int) -> None:
        if self.host.boot_clock() >= self.start_deadline:
            self.agent, self.agent_exit = 1, 127
            return
        self.agent = self.host.start_agent(self.plan.attempt)
        if self.host.agent and self.informed:
            self.host.agent.lease.newest = self.informed

    def inform_agent(self, participants: Participants) -> None:
        self.informed = participants
        if self.host.agent and self.host.agent.attempt == self.plan.attempt:
            self.host.agent.lease.newest = participants

    def reap(self) -> None:
        agent = self.host.agent
        if agent and agent.pid == self.agent and agent.code is not None and self.agent_exit is None:
            self.agent_exit = 128 - agent.code if agent.code < 0 else agent.code

    def kill(self) -> None:
        if self.host.agent:
            self.host.agent.signal(signal.SIGKILL)

    def end(self, _: float) -> Any:
        self.kill()
        return SimpleNamespace(step=list)

    def kill_store(self) -> None:
        self.store = None

    def forking(self) -> bool:
        return False

    def agent_bytes(self) -> int:
        return 0

    def hidden_children(self) -> list[int]:
        return []

    def store_output(self) -> str:
        return ""

    begin = close = take_over = end_fork_server = start_fork_server = lambda *_, **__: None
