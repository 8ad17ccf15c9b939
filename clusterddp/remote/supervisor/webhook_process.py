"""The process that notifies a URL of a run's progress (``run --notify URL``): one on each node, beside the supervisor.

It only reads the node's files, so a network that hangs delays nothing of the run, and nobody waits for it. The URL, a
secret, comes on stdin and is kept in memory only. The leading node notifies of events; the node that made the verdict
notifies of the end.
"""

import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from typing import List, Mapping, NamedTuple, Optional, Set, Tuple
from urllib.parse import urlsplit

from ..shared.run.event_schema import STALLED_EVENT, of_kind
from ..shared.run.run_record import RunRecord
from ..shared.run.run_state import end_event
from ..shared.run.webhook_request import notice_of, post
from ..shared.schema.fields import Fields
from ..shared.schema.record import field, nested, read_record, record, to_fields
from ..shared.supervisor.start_records import WebhookOrder
from ..spool.layout import Spool, all_spools
from ..spool.supervisor_identity import clock_step
from ..system.bootstrap import Refused
from .status_operation import last_output

POLL_INTERVAL = 1.0  # seconds between two reads of the node's files
CONNECT_TIMEOUT = 3.0  # seconds for the first connection
READY_TIMEOUT = 600.0  # seconds for all nodes to be ready
VERDICT_TIMEOUT = 30.0  # seconds after the supervisor's end in which a verdict may still come
RETRY_PAUSES = (0.0, 2.0, 8.0)  # seconds before each try of a request
REQUEST_TIMEOUT = 10.0  # seconds for one request
PORTS = {"http": 80, "https": 443}
# of the agent's environment; all else is left out
_NETWORK_VARIABLES = ("http_proxy", "https_proxy", "no_proxy", "all_proxy", "ssl_cert_file", "ssl_cert_dir")


@record
class WebhookTask(NamedTuple):
    """What the process is started with.

    Name and script are the run's, without secret values, since nobody knows these any more when the run has ended.
    """

    webhook: WebhookOrder = field(nested(WebhookOrder))
    name: Optional[str] = field(Fields.maybe_text)
    script: Optional[str] = field(Fields.maybe_text)


def begin(spool: Spool, environment: Mapping[str, str], task: WebhookTask) -> socket.socket:
    """Start the process, which outlives this one; ``read_answer`` reads its answer from the socket that is returned.

    ``environment`` is the agent's, whose proxies are used.
    """
    ours, its = socket.socketpair()
    with its:
        subprocess.Popen(
            [sys.executable, "-I", "-S", spool.code, "webhook", spool.folder],
            env={name: value for name, value in environment.items() if name.lower() in _NETWORK_VARIABLES},
            cwd="/",
            stdin=its.fileno(),
            stdout=its.fileno(),
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
    try:
        ours.sendall(json.dumps(to_fields(task)).encode())
        ours.shutdown(socket.SHUT_WR)
    except OSError:  # it died at once; its missing answer shows that
        pass
    return ours


def read_answer(answer: socket.socket) -> str:
    """Wait for the process's answer: why it cannot reach the URL; empty if it can."""
    answer.settimeout(CONNECT_TIMEOUT + 2.0)
    try:
        with answer:
            reply = answer.recv(1000).decode(errors="replace").strip()
    except OSError:
        reply = ""
    return "" if reply == "ok" else reply or "no answer in %d s" % CONNECT_TIMEOUT


def main(argv: List[str]) -> int:
    """Notify until the run is over. ``argv``: the spool of the first attempt; stdin: ``task`` of ``begin``."""
    task = read_record(WebhookTask, json.load(sys.stdin), "task")
    signal.alarm(int(CONNECT_TIMEOUT) + 1)  # a name service may take longer: then this process ends without an answer
    why = _why_unreachable(task.webhook.url)
    signal.alarm(0)
    sys.stdout.write((why or "ok") + "\n")
    sys.stdout.flush()
    null = os.open(os.devnull, os.O_RDWR)
    for handle in range(3):
        os.dup2(null, handle)
    spool = Spool(argv[0])
    if why or not _hosts_notify(spool):
        return 0
    WebhookNotifier(spool, task).run()
    return 0


def _hosts_notify(spool: Spool) -> bool:
    """Whether the hosts send the notices (else the operator does), which is known once all are ready."""
    deadline = time.monotonic() + READY_TIMEOUT
    while time.monotonic() < deadline:
        ready = spool.committed()
        if ready:
            return ready.tell
        if spool.exit_record():
            return False
        time.sleep(POLL_INTERVAL)
    return False


def _why_unreachable(url: str) -> str:
    """Why the URL cannot be reached; empty if the server, or the proxy before it, accepts a connection."""
    try:
        parts = urlsplit(url)
        proxy = urllib.request.getproxies().get(parts.scheme)
        if proxy and not urllib.request.proxy_bypass(parts.hostname or ""):
            parts = urlsplit(proxy if "://" in proxy else "http://" + proxy)
        address = (parts.hostname or "", parts.port or PORTS.get(parts.scheme, 80))
        socket.create_connection(address, CONNECT_TIMEOUT).close()
    except (OSError, ValueError) as error:  # its text may contain the URL, so it is not returned
        return getattr(error, "strerror", None) or ("timed out" if isinstance(error, OSError) else "no URL")
    return ""


class WebhookNotifier:
    """Sends one node's notices."""

    def __init__(self, spool: Spool, task: WebhookTask) -> None:
        self.spool, self.task = spool, task
        self.silence = task.webhook.silence  # seconds without output that it notifies of, or 0
        self.state = spool.state
        self.lost: Set[str] = set()  # hosts whose loss was notified, by this node or another leader
        self.silent = False  # whether the present silence was notified
        self.stalls: Set[Tuple[int, str]] = set()  # those of this attempt that were notified, by any leader
        self.events_size = 0  # of the events file, when it was last searched for them

    def run(self) -> None:
        """Notify until the run's end was, or the supervisor ended ``VERDICT_TIMEOUT`` seconds ago without a verdict."""
        ended_since: Optional[float] = None
        while True:
            try:
                over = self.check()
            except (Refused, OSError, ValueError):  # a file is damaged, or a disk fails: try again
                over = False
            if over:
                return
            # Between two attempts it looks ended too: the next one's spool becomes ours a moment later.
            ended_since = None if self.spool.alive() else ended_since or time.monotonic()
            if ended_since and time.monotonic() - ended_since > VERDICT_TIMEOUT:
                return
            time.sleep(POLL_INTERVAL)

    def check(self) -> bool:
        """Notify of what is new; return whether the run is over."""
        newest = max(self._spools(), key=lambda spool: spool.attempt)
        verdict = newest.verdict()
        if verdict:
            if verdict.writer == newest.host:
                self.spool = newest
                self.notify(end_event(verdict.state), verdict.line, verdict.ended)
            return True
        peers = newest.peers()
        if peers is None:  # it has just begun: the leader is not known yet
            return False
        is_leader, plan = peers.leader == newest.host, newest.plan()
        self._notify_lost({*plan.record.lost, *set(peers.missing).intersection(peers.excluded)}, is_leader=is_leader)
        if newest.attempt > self.spool.attempt:
            self.spool, self.silent, self.stalls, self.events_size = newest, False, set(), 0
            if is_leader:
                hosts = ", ".join(plan.peers[member].host for member in plan.members)
                self.notify("relaunched", "attempt %d on %s" % (newest.attempt, hosts))
        self._notify_stalls(is_leader=is_leader)
        if is_leader:
            self._notify_silence()
        return False

    def _spools(self) -> List[Spool]:
        """The node's spools, one an attempt."""
        return [spool for spool in all_spools(self.state, self.spool.run) if spool.host == self.spool.host]

    def _notify_lost(self, lost: Set[str], *, is_leader: bool) -> None:
        """Notify of hosts that the leader has given up; a later leader has learned of them from it."""
        for host in sorted(lost - self.lost):
            self.lost.add(host)
            if is_leader:
                self.notify("lost", "%s is lost" % host)

    def _notify_stalls(self, *, is_leader: bool) -> None:
        """Notify of what the stall guard has found; every node records it."""
        try:
            size = os.stat(self.spool.events_file).st_size
        except FileNotFoundError:
            return
        if size == self.events_size:
            return
        self.events_size = size
        for event in of_kind(self.spool.events(), STALLED_EVENT):
            stall = event.start, event.reason  # workers that were started again may hang in the same words
            if stall not in self.stalls and is_leader:
                self.notify("stalled", event.reason)
            self.stalls.add(stall)

    def _notify_silence(self) -> None:
        """Notify once each time that no worker of this node has printed for ``silence`` seconds."""
        printed = last_output(self.spool) if self.silence else None
        if printed is None:
            return
        quiet = time.time() - printed / 1e9
        if quiet >= self.silence and not self.silent:
            since = time.strftime("%H:%M:%S", time.localtime(printed / 1e9))
            self.notify("silent", "no rank on %s has printed for %d s, since %s" % (self.spool.host, quiet, since))
        self.silent = quiet >= self.silence

    def _record(self) -> Tuple[RunRecord, int]:
        """The run's record without secret values, and how far this host's clock now is ahead of the operator's, in ns.

        The offset was measured when the attempt began.
        """
        try:
            plan = self.spool.plan()
            record, ahead = plan.record, plan.clock_offset_ns + clock_step(self.spool.recorded_supervisor())
        except (Refused, OSError, ValueError):  # damaged: the notice is sent all the same
            record, ahead = RunRecord(hosts=()), 0
        return record._replace(name=self.task.name, script=self.task.script), ahead

    def notify(self, event: str, text: str, when: Optional[int] = None) -> None:
        """Send a notice; if that fails, record an event. ``when`` is in ns by the operator's clock, by default now."""
        record, ahead = self._record()
        notice = notice_of(self.spool.run, record, event, text, when or time.time_ns() - ahead)
        why = ""
        for pause in RETRY_PAUSES:
            time.sleep(pause)
            why, again = post(self.task.webhook.url, notice, REQUEST_TIMEOUT)
            if not again:
                break
        if why:
            self.spool.event("not_notified", reason=why)
