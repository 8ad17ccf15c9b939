"""The operations ``start`` and ``commit``: from a node's plan to a running supervisor, at most once.

``start`` makes the spool, sets up the environment that the setup lines leave, binds the ports, and starts a supervisor
that no longer needs this connection. ``commit`` reports that every node is ready: only then the agents start, all at
once. A supervisor that never receives it ends by itself, so an operator that dies during a start leaves nothing behind.
``renew`` renews the lease of a run that is to end with its terminal.
"""

import fcntl
import hashlib
import io
import json
import os
import signal
import socket
import sys
import time
from typing import IO, Any, Callable, Dict, List, Mapping, Optional, Sequence, Tuple, Union

from ..cleanup import retention
from ..helper.request import Request
from ..shared.processes.exit_codes import EXIT_CANNOT_START, EXIT_NOT_THE_SCRIPT, EXIT_STOPPED
from ..shared.run.plan import NodePlan
from ..shared.run.run_state import RunState
from ..shared.run.spool_records import Ready, read_ready
from ..shared.schema.fields import Fields
from ..shared.schema.record import parse_record, read_record, to_fields
from ..shared.supervisor.start_records import (
    COMMIT_TIMEOUT,
    Claimed,
    ClaimRequest,
    CommitRequest,
    CommittedNode,
    Invitation,
    InviteRequest,
    Renewed,
    RenewRequest,
    StartedNode,
    StartOrder,
    StartRequest,
    WebhookOrder,
)
from ..shared.verdict.failures import ended_by_manager
from ..shared.wire.frames import parse_json
from ..spool.creation import PROGRAM, create_spool
from ..spool.layout import Spool, all_spools
from ..spool.quoted import keep_secrets
from ..system.bootstrap import Refused, private_folder
from ..system.clock import boot_clock
from ..system.descriptors import OpenedCode, own_code
from ..system.ports import bind_ports
from ..workdir.run_markers import protect
from ..worker.agent_environment import agent_environment
from ..worker.worker_env import write_worker

MAX_SHARED = 64 << 20  # bytes of JSON of what nodes' plans have in common; 10,000 nodes have 2 MB
OTHER_START_TIMEOUT = 10.0  # seconds that another start of the same node gets to bring its supervisor up


def start(request: Request) -> Dict[str, Any]:
    """Operation: start the node's supervisor; when repeated, the same one answers.

    The operator's data is a ``StartOrder``, behind what its ``StartRequest`` says; returns a ``StartedNode``
    (shared/supervisor/start_records.py).
    """
    size = request.read_args(StartRequest).shared
    data = request.read_all()
    _check_own_code()
    try:
        order = parse_record(data[size:], lambda value: _read_order(value, data[:size]))
    except ValueError as error:
        raise Refused("the node's plan is damaged: %s" % error) from None
    return to_fields(start_node(request.state, order))


def _read_order(value: Any, shared: bytes) -> StartOrder:
    """Read an order; ``shared``: what its plan leaves out. Raises ValueError."""
    if shared:
        plan = dict(Fields(_unpack(shared)).rest(()), **Fields(value).raw("plan"))
        value = dict(value, plan=plan)
    return read_record(StartOrder, value, "order")


def _unpack(shared: bytes) -> Any:
    """Return the JSON value that the operator packed once for all nodes; raises ValueError."""
    import zlib  # joining hosts get nothing packed

    try:
        return parse_json(zlib.decompressobj().decompress(shared, MAX_SHARED))
    except zlib.error as error:
        raise ValueError(str(error)) from None


def start_node(state: str, order: StartOrder) -> StartedNode:
    """Start the supervisor of a node, as a child of the nearest subreaper above this process.

    The agent starts only when all nodes are ready (``commit_node``). Raises Refused if the run was stopped already, its
    port range is taken, the setup lines fail, ….
    """
    plan, secrets = order.plan, order.secrets
    spool = Spool.of(state, plan.run, plan.attempt, plan.node)
    for other in all_spools(state, plan.run):
        stop = other.stop_order()  # a workload manager that has ended an attempt may begin another
        if stop and not (plan.manager and stop.reason == ended_by_manager(plan.manager)):
            raise Refused("run %s was stopped" % plan.run, "start a new one")
    if os.path.isdir(spool.folder):
        return _await_existing(spool)
    if plan.settings.program:
        plan = _with_folders_in_spool(plan, spool)
    environment = agent_environment(plan, spool)
    if not plan.settings.program:
        private_folder(os.path.dirname(plan.run_dir))
        private_folder(plan.run_dir)
        if not os.path.isdir(plan.cwd):
            raise Refused("the working folder %s is not there" % plan.cwd, "run again without --no-sync")
    needed = [bool(plan.store), len(plan.peers) > 1 or plan.settings.elastic]
    # One more than needed: the workers' MASTER_PORT is taken from this range too, later.
    bound = bind_ports(plan.host_settings.ports, sum(needed) + 1, plan.peers[plan.member].address)
    bound.pop().close()
    listeners = [bound.pop() if is_needed else None for is_needed in needed]
    store, control = (listener.getsockname()[1] if listener else 0 for listener in listeners)
    plan = plan._replace(bound=(store, control))
    with OpenedCode() as code:
        created = create_spool(spool, plan, code)
    if not created:
        return _await_existing(spool)
    spool.write_control_key(order.key.encode())
    if secrets:
        keep_secrets(spool.folder, json.dumps(dict(secrets)).encode())
    write_worker(spool, plan.python)
    webhook = order.webhook
    await_webhook = _start_webhook(spool, environment, order, webhook) if webhook else None
    answer, not_warm = _start_supervisor(state, plan, spool, environment, listeners)
    if answer != b"ready\n":
        reason = "the supervisor did not start: %s" % (answer.decode(errors="replace").strip() or "it died")
        stop = spool.stop_order()
        if not spool.exit_record():
            stopped = (RunState.STOPPED, EXIT_STOPPED, stop.reason) if stop else None
            spool.write_exit(*(stopped or (RunState.FAILED, EXIT_NOT_THE_SCRIPT, reason)))
        raise Refused(reason)
    if not plan.settings.program:
        _protect_code(spool, plan, state)
    retention.prune_at_start(state, [plan.host])
    unreachable = await_webhook() if await_webhook else ""
    return StartedNode(
        started=True, spool=spool.folder, store=store, control=control, unreachable=unreachable, not_warm=not_warm
    )


def _start_webhook(
    spool: Spool, environment: Mapping[str, str], order: StartOrder, webhook: WebhookOrder
) -> Callable[[], str]:
    """Start the process that notifies a URL of the run.

    Returns a function that waits until that process knows why the URL cannot be reached; its answer is empty if it can.
    """
    from ..shared.text.redaction import Redaction  # most runs notify nobody
    from . import webhook_process  # slow to import

    redaction, record = Redaction(order.secrets.values()), order.plan.record
    task = webhook_process.WebhookTask(webhook, redaction.value(record.name), redaction.value(record.script))
    answer = webhook_process.begin(spool, environment, task)
    return lambda: webhook_process.read_answer(answer)


def _check_own_code() -> None:
    """Check that the zipapp this helper runs from, which the run gets a copy of, is undamaged; raises Refused."""
    path, code = sys.argv[0], own_code()
    name = os.path.basename(path)[: -len(".pyz")]
    is_undamaged = hashlib.sha256(code).hexdigest() == name
    if "-" in name:  # made by helper/own_code.py, which ends it with a digest; else the name is the digest
        from ..shared.code.code_archive import is_whole  # slow to import

        is_undamaged = is_whole(code)
    if not is_undamaged:
        os.unlink(path)
        raise Refused("%s was damaged, and is removed" % path, "try again: the next connection brings it replace")


def _with_folders_in_spool(plan: NodePlan, spool: Spool) -> NodePlan:
    """A plan for a built-in program, with all its folders in the spool, so that nothing of it outlives that."""
    folder = spool.path(PROGRAM)
    return plan._replace(cwd=folder, workdir=folder, run_dir=folder, env=dict(plan.env, CLUSTERDDP_RUN_DIR=folder))


def _protect_code(spool: Spool, plan: NodePlan, state: str) -> None:
    """Protect the code of the run, which is live now; refuse if it was changed between its sync and its start."""
    try:
        protect(spool, state, plan.workdir, plan.record.code)
    except Refused as error:
        spool.write_stop_order(error.message, 0.0)
        raise


def commit(request: Request) -> Dict[str, Any]:
    """Operation: tell a supervisor that all nodes are ready; the result says whether it runs.

    Takes a ``CommitRequest``, returns a ``CommittedNode`` (shared/supervisor/start_records.py). The operator's data, if
    any, is the request's ``ready``, packed.
    """
    packed = request.read_all()
    try:
        asked = request.read_args(CommitRequest)
        ready = read_ready(_unpack(packed)) if packed else asked.ready
    except ValueError as error:
        raise Refused("what every node is to know is damaged: %s" % error) from None
    spool = Spool(asked.spool)
    commit_node(spool, ready)
    ended = spool.exit_record()
    return to_fields(CommittedNode(alive=spool.alive(), exit=ended))


def commit_node(spool: Spool, ready: Ready) -> None:
    """Record that all nodes are ready, so that the agent starts."""
    spool.write_committed(ready)
    wake(spool)


def invite(request: Request) -> Dict[str, Any]:
    """Operation: what another host needs to join the run of a spool.

    Takes an ``InviteRequest``, returns an ``Invitation`` (shared/supervisor/start_records.py).
    Raises Refused if the run has ended here, or was started by another version, whose supervisors ours cannot join.
    """
    spool = Spool(request.read_args(InviteRequest).spool)
    if not spool.alive() or spool.stop_order():
        raise Refused("run %s has ended" % spool.run)
    if _checksums(spool.code) != _checksums(io.BytesIO(own_code())):
        raise Refused("run %s was started by another version of clusterddp" % spool.run, "join it with that version")
    plan, ready, known = spool.plan(), spool.committed() or Ready(), spool.peers()
    return to_fields(
        Invitation(
            plan=plan,
            key=spool.control_key().decode(),
            secrets=spool.secrets(),
            ready=ready._replace(peers=known.addresses) if known and known.addresses else ready,
            lost=tuple(sorted({*plan.record.lost, *(known.excluded if known else ())})),
            leader=known.leader if known else None,
        )
    )


def claim(request: Request) -> Dict[str, Any]:
    """Operation: reserve a member index of a run for a host about to start there, or release it.

    Takes a ``ClaimRequest``, returns ``Claimed`` (shared/supervisor/start_records.py).
    Two hosts that join at the same moment were both invited as the next member; the first to claim it gets it.
    """
    asked = request.read_args(ClaimRequest)
    spool, member = Spool(asked.spool), asked.member
    handle = os.open(spool.path("claim.%d" % member), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    with os.fdopen(handle, "r+") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        claimed, now = file.read(), boot_clock()
        is_free = len(spool.plan().peers) == member and not (claimed and now - float(claimed) < COMMIT_TIMEOUT)
        if is_free or asked.release:
            file.truncate(0)
            file.seek(0)
            file.write("" if asked.release else "%f" % now)
    return to_fields(Claimed(claimed=is_free))


def _checksums(zipapp: Union[str, IO[bytes]]) -> Dict[str, int]:
    """The content of a zipapp, however it was packed, without byte code: checksums by name."""
    import zipfile  # slow to import

    with zipfile.ZipFile(zipapp) as archive:
        return {info.filename: info.CRC for info in archive.infolist() if not info.filename.endswith(".pyc")}


def renew(request: Request) -> Dict[str, Any]:
    """Operation: renew the lease of the run and host of a ``RenewRequest``, since the attached operator is there.

    Returns ``Renewed`` (shared/supervisor/start_records.py).
    """
    asked = request.read_args(RenewRequest)
    live = [spool for spool in all_spools(request.state, asked.run) if spool.host == asked.host and spool.alive()]
    for spool in live:
        spool.renew_lease()
    return to_fields(Renewed(renewed=bool(live)))


def wake(spool: Spool) -> None:
    """Signal a node's supervisor to read new orders from the spool at once, rather than at its next periodic check."""
    supervisor = spool.supervisor()
    if supervisor:
        os.kill(supervisor, signal.SIGUSR1)


def _await_existing(spool: Spool) -> StartedNode:
    """The answer for a node that another start has made, once its supervisor runs or has ended."""
    deadline = time.monotonic() + OTHER_START_TIMEOUT
    while not spool.alive() and not spool.exit_record():
        if time.monotonic() > deadline:
            raise Refused("an earlier start of this node was cut short", "start a new run")
        time.sleep(0.05)
    store, control = spool.plan().bound
    return StartedNode(started=False, spool=spool.folder, store=store, control=control)


def _start_supervisor(
    state: str,
    plan: NodePlan,
    spool: Spool,
    environment: Mapping[str, str],
    listeners: Sequence[Optional[socket.socket]],
) -> Tuple[bytes, str]:
    """Start the supervisor from the host's warm server if that gives the same, else by ``spawn``; leave a warm server.

    Returns the supervisor's first line, and why an existing warm server did not start it, or none can be left.
    """
    if not plan.worker_argv or not plan.host_settings.warm:
        return spawn(spool, environment, listeners), ""
    from . import preload_client  # slow to import

    start = preload_client.PreloadedStart(state, spool, plan, environment)
    handles = [listener.fileno() for listener in listeners if listener]
    answer, not_warm, replace = b"", "", False
    try:
        flags = [listener is not None for listener in listeners]
        answer = _hand_over(
            environment, lambda pipes: preload_client.may_preload(plan) and start.begin([*pipes, *handles], flags)
        )
    except preload_client.DiffersError as error:
        not_warm, replace = str(error), not isinstance(error, preload_client.NotReadyError)
        spool.event("not_warm", reason=not_warm)
    answer = answer or spawn(spool, environment, listeners)
    try:
        if preload_client.may_preload(plan):
            start.start_for_next_run(spool.supervisor() or 0, replace=replace)
    except OSError as error:
        not_warm = "none can be started: %s" % error
        spool.event("not_warm", reason=not_warm)
    return answer, not_warm


def spawn(spool: Spool, environment: Mapping[str, str], listeners: Sequence[Optional[socket.socket]]) -> bytes:
    """Start the supervisor from the spool's own copy of the code, detached; returns its first line.

    It gets the agent's environment on stdin rather than as its own: a setup line may set LD_LIBRARY_PATH, which must
    not affect the interpreter that the supervisor runs on.
    """
    argv = [sys.executable, "-I", "-S", spool.code, "supervisor", spool.folder]
    for listener in listeners:
        if listener:
            os.set_inheritable(listener.fileno(), True)
        argv.append(str(listener.fileno()) if listener else "-")

    def begin(pipes: Tuple[int, int]) -> bool:
        pid = os.fork()
        if not pid:
            _detach(argv, *pipes)
        os.waitpid(pid, 0)
        return True

    return _hand_over(environment, begin)


def _hand_over(environment: Mapping[str, str], begin: Callable[[Tuple[int, int]], bool]) -> bytes:
    """Start a supervisor by ``begin(its stdin, its stdout)``, send it the environment, and return its first line.

    ``begin`` may return False: then there is no supervisor, and the result is empty.
    """
    to_supervisor, from_supervisor = os.pipe(), os.pipe()
    begun = False
    try:
        begun = begin((to_supervisor[0], from_supervisor[1]))
    finally:
        for handle in (
            to_supervisor[0],
            from_supervisor[1],
            *(() if begun else (to_supervisor[1], from_supervisor[0])),
        ):
            os.close(handle)
    if not begun:
        return b""
    try:
        with os.fdopen(to_supervisor[1], "wb") as stream:
            stream.write(json.dumps(dict(environment)).encode())
    except BrokenPipeError:  # it died at once; the empty answer below shows that
        pass
    with os.fdopen(from_supervisor[0], "rb") as stream:
        return stream.read()


def _detach(argv: List[str], stdin: int, stdout: int) -> None:
    """In the forked child: a new session, a second fork, the pipes as stdin and stdout, exec; never returns."""
    try:
        os.setsid()
        if os.fork():
            os._exit(0)
        os.chdir("/")
        os.dup2(stdin, 0)
        os.dup2(stdout, 1)
        log = os.open(os.path.join(argv[5], "supervisor.log"), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        os.dup2(log, 2)
        spool = Spool(argv[5])  # a worker that starts a run passes on its own run's marks: these replace them
        os.execve(argv[0], argv, dict(os.environ, CLUSTERDDP_RUN_ID=spool.run, CLUSTERDDP_HOST=spool.host))
    finally:
        os._exit(EXIT_CANNOT_START)
