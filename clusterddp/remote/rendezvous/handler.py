"""The ``RendezvousHandler`` that torch loads in the agent, built on the rounds of rounds.py.

It uses only public classes of torch, which are stable from torch 2.6 on: ``RendezvousHandler``, ``TCPStore``.
"""

import atexit
import json
import os
import socket
import sys
import threading
import time
from datetime import timedelta
from typing import Any, Callable, List, Optional, Tuple, TypeVar

from torch.distributed import PrefixStore, TCPStore  # type: ignore[import-not-found,attr-defined,unused-ignore]
from torch.distributed.elastic.rendezvous import (  # type: ignore[import-not-found,unused-ignore]
    RendezvousConnectionError,
    RendezvousError,
    RendezvousHandler,
    RendezvousInfo,
    RendezvousStoreInfo,
)
from torch.distributed.elastic.rendezvous.utils import parse_rendezvous_endpoint  # type: ignore[import-not-found,unused-ignore]

from ..shared.run.plan import BACKEND, PLAN, NodePlan, read_plan
from .participants import Participants, supervisor_participants
from .rounds import JobOver, NoRound, Rounds, RoundSpec

ROUND_VARIABLE = "CLUSTERDDP_ROUND"  # in the environment of the workers' shims, which record it
ABSENCE_TIMEOUT = 60.0  # seconds that a host may be unreachable where no other attempt can begin without it meanwhile

ANSWER_TIMEOUT = 1.0  # seconds for which an agent with running workers waits for the store at a time

T = TypeVar("T")


def create_handler(params: Any) -> "Handler":
    """Create the handler of this node from torchrun's options and the node's plan."""
    spool = os.path.dirname(os.environ["PYTHON_EXEC"])
    with open(os.path.join(spool, PLAN), encoding="utf-8") as stream:
        plan = read_plan(json.load(stream))
    return Handler(params, plan, supervisor_participants())


class Handler(RendezvousHandler):  # type: ignore[misc,unused-ignore]
    """One agent's ``RendezvousHandler``."""

    def __init__(self, params: Any, plan: NodePlan, participants: Callable[[], Participants]) -> None:
        self.attempt_id = params.run_id  # torchrun calls the attempt's id so
        self.node, self.participants = plan.node_rank, participants
        self.took_part = False  # whether this node has been in a round
        self.endpoint = params.endpoint
        self.timeout = timedelta(seconds=params.get_as_int("read_timeout", 60))
        self.store = self.call_store(self.connect)
        self.workers_store = WorkersStore(plan.host_settings.ports, params.local_addr)
        job = RoundSpec(
            node=self.node,
            names=plan.record.hosts[: plan.nnodes],  # without hosts that have joined, which have other numbers
            min_nodes=params.min_nodes,
            max_nodes=params.max_nodes,
            join_timeout=params.get_as_int("join_timeout", 300),
            absence_timeout=0.0 if plan.settings.relaunch else ABSENCE_TIMEOUT,
        )

        def store_address() -> Tuple[str, int]:
            return params.local_addr, self.workers_store.reserve()

        self.rounds = Rounds(self.store, job, store_address, tell=tell, participants=participants)
        self.question: Optional[Question] = None  # whether the round is superseded, not answered yet
        atexit.register(self.shutdown)  # torch does not call it when a signal ends the agent

    def connect(self) -> Any:
        """Connect to the attempt's store, under a prefix of keys of its own; raises JobOver if the job has ended."""
        if self.is_over():
            raise JobOver
        host, port = parse_rendezvous_endpoint(self.endpoint, default_port=-1)
        return PrefixStore("clusterddp/" + self.attempt_id, TCPStore(host, port, is_master=False, timeout=self.timeout))

    def call_store(self, call: Callable[[], T]) -> T:
        """Call ``call``, which uses the store, and turn its errors into torch's rendezvous errors.

        Raises SystemExit(0) where the job is over: torch has no way to end an agent that never had a round.
        """
        try:
            return call()
        except JobOver:  # no error: the agent says why and ends with 0, below
            pass
        except NoRound as error:
            raise RendezvousError(str(error)) from None
        except RuntimeError as error:  # the base class of all errors of torch's store
            if not self.is_over():  # else the store has ended with the job
                raise RendezvousConnectionError(
                    "the rendezvous store at %s does not answer: %s" % (self.endpoint, error)
                ) from error
        tell("the job has ended before this host took part in it")
        raise SystemExit(0)

    def is_over(self) -> bool:
        """Whether the job has ended successfully before this node took part in it."""
        return not self.took_part and self.participants().over_without(self.node)

    def get_backend(self) -> str:
        """Return the name of this rendezvous backend."""
        return BACKEND

    @property
    def use_agent_store(self) -> bool:
        """Tell torchrun that an agent serves the workers' store, as its own c10d does; each round has a new store."""
        return True

    def next_rendezvous(self) -> RendezvousInfo:
        """Take part in the next round and return this node's rank and the workers' store."""
        if self.question:  # its answer is about the round that ends here
            self.question.answered(None)
            self.question = None
        world = self.call_store(self.rounds.next)
        self.took_part = True
        os.environ[ROUND_VARIABLE] = str(self.rounds.number)
        if world.nodes[0] == self.rounds.job.node:
            self.call_store(self.workers_store.serve)
        else:
            self.workers_store.close()
        store = RoundStore("%d/agents" % self.rounds.number, self.store, self)
        rank = world.nodes.index(self.rounds.job.node)
        return RendezvousInfo(store, rank, len(world.nodes), RendezvousStoreInfo(world.address, world.port))

    def check_round(self) -> None:
        """Raise an error once this round cannot begin any more because a peer is lost."""
        why = self.rounds.obstacle()
        if why:
            raise RendezvousConnectionError(why)

    def num_nodes_waiting(self) -> int:
        """Return a number other than 0 when the agent must end its workers and join a new round.

        While the store's host is silent it is 0. torch would wait for that host in C++, where no signal is handled: the
        agent would pass no SIGTERM on to its workers.
        """
        self.question = self.question or Question(self.rounds.superseded)
        if not self.question.answered(ANSWER_TIMEOUT):
            return 0
        answer, self.question = self.question.answer, None
        return int(self.call_store(answer))

    def is_closed(self) -> bool:
        """Return False always; a round that cannot begin raises an error instead."""
        return False

    def set_closed(self) -> None:
        """Do nothing; a rendezvous is never closed."""

    def get_run_id(self) -> str:
        """Return the rendezvous id."""
        return str(self.attempt_id)

    def shutdown(self) -> bool:
        """Close the workers' store; run control informs the other nodes of this agent's end."""
        atexit.unregister(self.shutdown)
        self.workers_store.close()
        return True


class Question:
    """A call that uses the store, in a thread of its own."""

    def __init__(self, call: Callable[[], bool]) -> None:
        self.call = call
        self.value = False
        self.error: Optional[Exception] = None
        self.thread = threading.Thread(target=self._run, daemon=True)
        self.thread.start()

    def _run(self) -> None:
        try:
            self.value = self.call()
        except Exception as error:  # noqa: BLE001 - raised by answer()
            self.error = error

    def answered(self, timeout: Optional[float]) -> bool:
        """Wait at most ``timeout`` seconds, without a limit if None; return whether the call has ended."""
        self.thread.join(timeout)
        return not self.thread.is_alive()

    def answer(self) -> bool:
        """Return what the call returned, or raise what it raised."""
        if self.error:
            raise self.error
        return self.value


class RoundStore(PrefixStore):  # type: ignore[misc,unused-ignore]
    """A round's store for torchrun's agents, which exchange their ranks in it and await each other at the end.

    torch waits for a missing value in C++ for minutes, during which no signal is handled and the end of the node that
    should write the value goes unnoticed. So this class polls instead, at first every millisecond. A read fails when
    the round cannot begin. torch uses ``wait`` for steps of all nodes, such as the end of their workers; it also
    returns when one of the nodes is lost.
    """

    def __init__(self, prefix: str, store: Any, handler: Handler) -> None:
        super().__init__(prefix, store)
        self.handler = handler

    def get(self, key: str) -> bytes:
        """Return the value of a key, as soon as it has one."""
        self.await_keys([key])
        value: bytes = super().get(key)
        return value

    def multi_get(self, keys: List[str]) -> List[bytes]:
        """Return the values of keys, as soon as all have one."""
        self.await_keys(keys)
        values: List[bytes] = super().multi_get(keys)
        return values

    def wait(self, keys: List[str], timeout: Optional[timedelta] = None) -> None:
        """Wait until all keys have a value, or one never will because a node is lost.

        Raises torch's own RuntimeError after the timeout.
        """
        limit: timedelta = timeout or self.timeout  # type: ignore[attr-defined,unused-ignore]
        if not self.poll_keys(keys, limit.total_seconds(), self.handler.rounds.can_stop_waiting):
            super().wait(keys, timedelta(milliseconds=1))

    def await_keys(self, keys: List[str]) -> None:
        """Wait until all keys have a value; raise torch's connection error after the timeout."""
        if not self.poll_keys(keys, self.handler.timeout.total_seconds(), self.handler.check_round):
            raise RendezvousConnectionError("some nodes of the round did not exchange their ranks in time")

    def poll_keys(self, keys: List[str], limit: float, enough: Callable[[], object]) -> bool:
        """Poll until all keys have a value or ``enough`` returns true; return False after ``limit`` seconds."""
        job, began, pause = self.handler.rounds.job, time.monotonic(), 0.001
        while not self.check(keys):
            waited = time.monotonic() - began
            # Before that the exchange may still end, and a new round without the lost nodes follows.
            if waited > job.pause and enough():
                return True
            if waited > limit:
                return False
            time.sleep(pause)
            pause = min(2 * pause, job.poll)
        return True


class WorkersStore:
    """The store of a round's workers, on a port of the plan's range, run by the node that holds rank 0.

    It listens before any worker starts, because a refused client of torch tries again only half a second later, and
    after ever longer pauses then. Until the nodes agree, the port is bound but not listening, with SO_REUSEADDR set
    after the bind. So the store, which sets that option too, can bind the same port, while another reservation, which
    binds without it, finds the port taken. (torch 2.6 cannot take over a listening socket.)
    """

    def __init__(self, ports: Tuple[int, int], address: Optional[str]) -> None:
        self.first, self.last = ports
        is_ipv6 = ":" in (address or "")
        self.family, self.loopback = (socket.AF_INET6, "::1") if is_ipv6 else (socket.AF_INET, "127.0.0.1")
        self.reserved: Optional[socket.socket] = None
        self.store: Any = None

    def reserve(self) -> int:
        """Reserve and return a free port, or 0 when none is free; closes the previous round's store."""
        self.close()
        for port in range(self.first, self.last + 1):
            reserved = socket.socket(self.family, socket.SOCK_STREAM)
            try:
                reserved.bind(("", port))
            except OSError:  # taken
                reserved.close()
                continue
            reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            self.reserved = reserved
            return port
        return 0

    def serve(self) -> None:
        """Start the store on the reserved port."""
        if self.reserved:
            self.store = TCPStore(self.loopback, self.reserved.getsockname()[1], is_master=True, wait_for_workers=False)
            self.reserved.close()
            self.reserved = None

    def close(self) -> None:
        """Close the store and release the reserved port."""
        self.store = None
        if self.reserved:
            self.reserved.close()
            self.reserved = None


def tell(line: str) -> None:
    """Print a line to the agent's output, which users see."""
    sys.stderr.write("clusterddp: %s\n" % line)
    sys.stderr.flush()
