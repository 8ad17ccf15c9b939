"""The ``RendezvousHandler`` that torch loads in the agent, over the rounds of rounds.py.

It stands on torch's public classes only, which are the same from torch 2.6 on: ``RendezvousHandler``, ``TCPStore``.
"""

import atexit
import json
import os
import socket
import sys
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
from torch.distributed.elastic.rendezvous.utils import (  # type: ignore[import-not-found,unused-ignore]
    parse_rendezvous_endpoint,
)

from ..shared.run.plan import BACKEND, NodePlan, read_plan
from .participants import Participants, of_supervisor
from .rounds import NoRound, Rounds, RoundSpec

ROUND = "CLUSTERDDP_ROUND"  # in the environment of shims, which record it
ABSENCE = 60.0  # seconds for which a cable may be out where no other attempt may begin without the host meanwhile

T = TypeVar("T")


def create_handler(params: Any) -> "Handler":
    """The handler of this node; what torchrun's options do not say stands in the node's plan."""
    spool = os.path.dirname(os.environ["PYTHON_EXEC"])
    with open(os.path.join(spool, "plan.json"), encoding="utf-8") as stream:
        plan = read_plan(json.load(stream))
    return Handler(params, plan, of_supervisor())


class Handler(RendezvousHandler):  # type: ignore[misc,unused-ignore]
    """One agent's ``RendezvousHandler``.

    Args:
        params: torch's RendezvousParameters.
        plan: The node's plan.
        participants: Gives who takes part, as run control says.
    """

    def __init__(self, params: Any, plan: NodePlan, participants: Callable[[], Participants]) -> None:
        self.run = params.run_id
        self.endpoint = params.endpoint
        self.timeout = timedelta(seconds=params.get_as_int("read_timeout", 60))
        self.store = self.asked(self.connect)
        self.workers_store = WorkersStore(plan.ports, params.local_addr)
        job = RoundSpec(
            node=plan.node_rank,
            names=plan.record.hosts,
            least=params.min_nodes,
            most=params.max_nodes,
            join_timeout=params.get_as_int("join_timeout", 300),
            absence=0.0 if plan.relaunch else ABSENCE,
        )

        def place() -> Tuple[str, int]:
            return params.local_addr, self.workers_store.reserve()

        self.rounds = Rounds(self.store, job, place, tell=tell, participants=participants)
        atexit.register(self.shutdown)  # torch does not call it when a signal ends the agent

    def connect(self) -> Any:
        """A connection to the run's store, with a key prefix of the attempt's own."""
        host, port = parse_rendezvous_endpoint(self.endpoint, default_port=-1)
        return PrefixStore("clusterddp/" + self.run, TCPStore(host, port, is_master=False, timeout=self.timeout))

    def asked(self, ask: Callable[[], T]) -> T:
        """Call the store; its errors become torch's rendezvous errors."""
        try:
            return ask()
        except NoRound as error:
            raise RendezvousError(str(error)) from None
        except RuntimeError as error:  # all of torch's are
            raise RendezvousConnectionError(
                "the rendezvous store at %s does not answer: %s" % (self.endpoint, error)
            ) from error

    def get_backend(self) -> str:
        """Our name."""
        return BACKEND

    @property
    def use_agent_store(self) -> bool:
        """Workers are clients of an agent's store, as under torchrun's own c10d; each round has a new one."""
        return True

    def next_rendezvous(self) -> RendezvousInfo:
        """Wait for the next round."""
        world = self.asked(self.rounds.next)
        os.environ[ROUND] = str(self.rounds.number)
        if world.nodes[0] == self.rounds.job.node:
            self.asked(self.workers_store.serve)
        else:
            self.workers_store.close()
        store = RoundStore("%d/agents" % self.rounds.number, self.store, self)
        rank = world.nodes.index(self.rounds.job.node)
        return RendezvousInfo(store, rank, len(world.nodes), RendezvousStoreInfo(world.address, world.port))

    def check_round(self) -> None:
        """Raise an error once this round cannot begin any more; another attempt may: a peer is lost."""
        why = self.rounds.obstacle()
        if why:
            raise RendezvousConnectionError(why)

    def num_nodes_waiting(self) -> int:
        """Not 0 when the agent must end its workers and come to a new round."""
        return int(self.asked(self.rounds.superseded))

    def is_closed(self) -> bool:
        """Never: a round that cannot come about is an error of its own."""
        return False

    def set_closed(self) -> None:
        """Nothing to do."""

    def get_run_id(self) -> str:
        """The rendezvous id."""
        return str(self.run)

    def shutdown(self) -> bool:
        """Leave the round's store; that this agent is no more run control tells the others."""
        atexit.unregister(self.shutdown)
        self.workers_store.close()
        return True


class RoundStore(PrefixStore):  # type: ignore[misc,unused-ignore]
    """A round's store for torchrun, whose agents read their ranks from it, and await each other by it at the end.

    torch waits for a missing value in C++, for minutes: no signal is handled meanwhile, and nothing says that the node
    that should write it has ended. So we look for it, at first every millisecond. A read fails when the round cannot
    begin. ``wait`` is for what all nodes have done, the end of their workers too: it ends when one of them is gone.

    Args:
        prefix: Of the round's keys.
        store: The run's.
        handler: It knows how the round stands, and how patient we are.
    """

    def __init__(self, prefix: str, store: Any, handler: Handler) -> None:
        super().__init__(prefix, store)
        self.handler = handler

    def get(self, key: str) -> bytes:
        """The value of a key, once it has one."""
        self.await_all([key])
        value: bytes = super().get(key)
        return value

    def multi_get(self, keys: List[str]) -> List[bytes]:
        """The values of keys, once they all have one."""
        self.await_all(keys)
        values: List[bytes] = super().multi_get(keys)
        return values

    def wait(self, keys: List[str], timeout: Optional[timedelta] = None) -> None:
        """Wait until all of the keys have a value, or will never have one because a node is gone.

        Raises:
            RuntimeError: torch's own, after the timeout.
        """
        limit: timedelta = timeout or self.timeout  # type: ignore[attr-defined,unused-ignore]
        if not self.look_for(keys, limit.total_seconds(), self.handler.rounds.goes_on_without):
            super().wait(keys, timedelta(milliseconds=1))

    def await_all(self, keys: List[str]) -> None:
        """Wait until all of the keys have a value."""
        if not self.look_for(keys, self.handler.timeout.total_seconds(), self.handler.check_round):
            raise RendezvousConnectionError("some nodes of the round did not exchange their ranks in time")

    def look_for(self, keys: List[str], limit: float, enough: Callable[[], object]) -> bool:
        """Look until all of the keys have a value, or ``enough`` says that that suffices; False after ``limit`` s."""
        job, began, pause = self.handler.rounds.job, time.monotonic(), 0.001
        while not self.check(keys):
            waited = time.monotonic() - began
            # Until then the exchange may well end, and a new round follows without the lost.
            if waited > job.pause and enough():
                return True
            if waited > limit:
                return False
            time.sleep(pause)
            pause = min(2 * pause, job.poll)
        return True


class WorkersStore:
    """The store by which a round's workers meet, on a port of the plan's range, where this node holds rank 0.

    It is there before any worker starts: torch's client that is refused comes again half a second later, and ever
    later after that. Until the nodes agree the port is bound but not listening, with SO_REUSEADDR set afterwards: the
    store, which sets that too, can bind it as well, while another reservation, which binds without, finds it taken.
    (torch 2.6 cannot take over a socket that listens.)
    """

    def __init__(self, ports: Tuple[int, int], address: Optional[str]) -> None:
        self.first, self.last = ports
        six = ":" in (address or "")
        self.family, self.own = (socket.AF_INET6, "::1") if six else (socket.AF_INET, "127.0.0.1")
        self.held: Optional[socket.socket] = None
        self.store: Any = None

    def reserve(self) -> int:
        """Hold a free port, without the store of the round before; 0 when none is free."""
        self.close()
        for port in range(self.first, self.last + 1):
            held = socket.socket(self.family, socket.SOCK_STREAM)
            try:
                held.bind(("", port))
            except OSError:  # taken
                held.close()
                continue
            held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            self.held = held
            return port
        return 0

    def serve(self) -> None:
        """Answer those who come."""
        if self.held:
            self.store = TCPStore(self.own, self.held.getsockname()[1], is_master=True, wait_for_workers=False)
            self.held.close()
            self.held = None

    def close(self) -> None:
        """End it."""
        self.store = None
        if self.held:
            self.held.close()
            self.held = None


def tell(line: str) -> None:
    """Print a line to the agent's output, which users see."""
    sys.stderr.write("clusterddp: %s\n" % line)
    sys.stderr.flush()
