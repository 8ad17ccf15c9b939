"""Repeat a call to each host of a run, one thread per host: renewals of the run's lease, late hosts that join.

A paused terminal or another unreachable host does not delay a host's call.
"""

from __future__ import annotations

import contextlib
import threading
from typing import TYPE_CHECKING

from clusterddp.errors import ClusterddpError, UnreachableError
from clusterddp.hosts.ask import ask
from clusterddp.remote.shared.supervisor.start_records import Renewed, RenewRequest

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from clusterddp.runs.run import Run

RENEWAL_INTERVAL = 10.0  # seconds between two renewals of the lease
RENEWAL_TIMEOUT = 20.0  # seconds for a host to acknowledge one
JOIN_INTERVAL = 20.0  # seconds between two attempts to reach late hosts


@contextlib.contextmanager
def repeat_on_hosts(
    hosts: Iterable[str], call: Callable[[str, threading.Event], bool], *, interval: float
) -> Iterator[None]:
    """While the block runs, repeat ``call(host, ended)`` every ``interval`` seconds for each host until it is False.

    The first call comes after ``interval`` seconds. The event ``ended`` is set when the block has ended.
    """
    ended = threading.Event()

    def repeat(host: str) -> None:
        while not ended.wait(interval) and call(host, ended):
            pass

    for host in hosts:
        threading.Thread(target=repeat, args=(host,), name=f"repeated {host}", daemon=True).start()
    try:
        yield
    finally:
        ended.set()


def lease_renewal(run: Run) -> contextlib.AbstractContextManager[None]:
    """Renew the lease of ``--on-disconnect stop`` while the block runs; nothing for a run that outlives its terminal.

    It is enough that one host receives it: the supervisors pass it on, and stop the run after 60 s without one.
    """

    def is_renewed(host: str) -> bool | None:  # None: it is unreachable
        request = RenewRequest(run=run.id, host=host)
        try:
            return ask(run.reader(host), "renew", request, Renewed, timeout=RENEWAL_TIMEOUT).renewed
        except ClusterddpError:
            return None

    def renew(host: str, _: threading.Event) -> bool:
        renewed = is_renewed(host)
        if renewed or (renewed is None and host != hosts[0]):  # the next renewal tries again; one look is enough
            return True
        try:
            view = run.view(brief=True, quiet=True)
        except ClusterddpError:
            return True
        # It may go on elsewhere: Slurm has chosen others for a relaunch. The first of them that hears it is enough.
        for name in set(view.current).difference(hosts):
            if is_renewed(name):
                break
        return view.live or renewed is None

    hosts = (*run.spools, *run.record.spares) if run.record.on_disconnect == "stop" else ()
    return repeat_on_hosts(hosts, renew, interval=RENEWAL_INTERVAL)


def renewed_until(closed: threading.Event, run: Run) -> Run:
    """Renew the run's lease in a background thread until ``closed`` is set or this process ends; return the run.

    Only runs with ``--on-disconnect stop`` have a lease; for others nothing is done.
    """

    def renew() -> None:
        with contextlib.suppress(ClusterddpError), lease_renewal(run.begun(lambda _line: None)):
            closed.wait()

    if run.record.on_disconnect == "stop":
        threading.Thread(target=renew, name=f"lease of {run.id}", daemon=True).start()
    return run


def join_late_hosts(
    run: Run, join: Callable[[Run, Sequence[str]], object], notify: Callable[[str], None]
) -> contextlib.AbstractContextManager[None]:
    """While the block runs, try every ``JOIN_INTERVAL`` s to join each host that was left out at the run's start."""

    def try_to_join(host: str, ended: threading.Event) -> bool:
        try:
            newest = run.at(run.view(brief=True, quiet=True))  # it may have been relaunched
        except ClusterddpError:  # none of its hosts answers just now
            return True
        try:
            join(newest, [host])
        except UnreachableError:
            return True
        except ClusterddpError as error:  # the host answers but cannot take part, or the run takes no more hosts
            if not ended.is_set():
                notify(f"{host} cannot join: {error}")
            return False
        notify(f"{host} joins")
        return False

    return repeat_on_hosts(run.record.left_out, try_to_join, interval=JOIN_INTERVAL)
