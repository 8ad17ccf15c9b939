"""Turn a fork of the run's fork server into a worker, as `python -u SCRIPT` is at this point of its start.

What a new process gets at its start and a fork does not is renewed. Where that may fail the worker is refused, and its
shim starts it plainly. The differences that remain are documented in docs/fork-server.md.
"""

import os
import signal
import sys
import time
from typing import Any, Dict, FrozenSet, List, NamedTuple, Sequence, Set, Tuple

from ..shared.run.fork_requests import WorkerRequest
from ..system import prctl
from ..system.oom_kills import OOM_SCORE
from ..system.rename import rename, set_environment
from .fork_checks import NO_RENAME, RefusedError, refuse_shadows, tell
from .import_times import measure

# Set by torchrun for each worker; importing torch reads none of these (docs/performance.md).
OF_A_WORKER = (
    "RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_RANK", "GROUP_WORLD_SIZE", "ROLE_RANK", "ROLE_NAME",
    "ROLE_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "TORCH_NCCL_ASYNC_ERROR_HANDLING",
)  # fmt: skip
OF_A_WORKER_PREFIX = "TORCHELASTIC_"
FILE_TYPE_BITS = 0o170000  # the file type's bits of st_mode


class WorkerInputs(NamedTuple):
    """What a forked worker inherits from the fork server."""

    argv: List[str]  # the server's command line, which is the same as a worker's
    env: Dict[str, str]  # the server's environment
    asked: Set[str]  # top-level names of the modules that the server has searched for
    left_out: FrozenSet[str] = frozenset()  # top-level names of the packages that it could not preload
    first: Sequence[str] = ()  # the project's folders that come first in sys.path, or may be put there

    @classmethod
    def of_this_process(cls, asked: Set[str]) -> "WorkerInputs":
        """Return those of the calling process, before it imports anything."""
        with open("/proc/self/cmdline", "rb") as stream:
            argv = [os.fsdecode(argument) for argument in stream.read().split(b"\0")[:-1]]
        return cls(argv, dict(os.environ), asked)


def become_worker(
    given: WorkerInputs, request: WorkerRequest, handles: List[int], parent: int, pipes: Tuple[int, int]
) -> Tuple[str, str]:
    """Prepare the worker and wait until it may begin; return its spool and ``<start>.<local_rank>``.

    When it is ready, the first of ``pipes`` is closed with nothing written, and the order to begin is read from the
    second. On failure the reason is written to the first, and the process exits. ``handles`` are stdin, stdout and
    stderr; ``parent`` is the pid of the worker parent.
    """
    refused, held = pipes
    try:
        _refuse_difference(given, request, handles)
        _renew(given, request, handles, parent)
    except BaseException as error:  # noqa: BLE001 - started plainly then
        tell(refused, str(error) if isinstance(error, RefusedError) else repr(error))
        os._exit(1)
    os.close(refused)
    if os.read(held, 1) != b"g":
        os._exit(1)
    os.close(held)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    measure(request.spool, request.key, given.left_out)
    return request.spool, request.key


def _refuse_difference(given: WorkerInputs, request: WorkerRequest, handles: Sequence[int]) -> None:
    """Refuse a worker that might behave differently from one started plainly; raises RefusedError."""
    if request.argv != given.argv:
        raise RefusedError("its command line is another: %s" % " ".join(request.argv))
    requested = dict(request.env)
    for name in sorted({*given.env, *requested}):
        if given.env.get(name) != requested.get(name) and not is_of_a_worker(name):
            raise RefusedError("%s is set for this worker alone" % name)
    if len(handles) != 3:
        raise RefusedError("its output did not come with it")
    for number, handle in enumerate(handles):
        mine, its = os.fstat(number), os.fstat(handle)
        if (mine.st_mode & FILE_TYPE_BITS, mine.st_rdev) != (its.st_mode & FILE_TYPE_BITS, its.st_rdev):
            raise RefusedError("its descriptor %d is of another kind" % number)
    for folder in given.first:
        refuse_shadows(folder, given.asked)


def is_of_a_worker(name: str) -> bool:
    """Whether torchrun sets this variable for each worker separately."""
    return name in OF_A_WORKER or name.startswith(OF_A_WORKER_PREFIX)


def _renew(given: WorkerInputs, request: WorkerRequest, handles: Sequence[int], parent: int) -> None:
    """Renew what a fork inherits from its parent; raises RefusedError or OSError if something cannot be renewed."""
    os.setsid()
    if not prctl.set_pdeathsig(signal.SIGKILL) or os.getppid() != parent:
        raise RefusedError("its parent is gone")
    prctl.set_oom_score_adj(OOM_SCORE)
    for number, handle in enumerate(handles):
        os.dup2(handle, number)
        os.close(handle)
    env = [(str(name), str(value)) for name, value in request.env]
    set_environment(env)
    if not rename(given.argv, env):
        raise RefusedError(NO_RENAME)
    reseed()


def seeded_generators() -> List[Any]:
    """Return the libraries' global random generators, which each fork reseeds; Python's ``random`` reseeds itself."""
    loaded: Dict[str, Any] = dict(sys.modules)
    found = [loaded["torch"].default_generator]
    if "numpy.random" in loaded:
        found.append(loaded["numpy.random"].mtrand._rand)  # noqa: SLF001
    sympy = loaded.get("sympy.core.random")
    found += [getattr(sympy, name, None) for name in ("rng", "_assumptions_rng")]
    found.append(getattr(getattr(loaded.get("sympy.core.symbol"), "Dummy", None), "_prng", None))
    return [one for one in found if one is not None]


def reseed() -> None:
    """Regenerate what a process draws once: seeds, keys, ids."""
    for generator in seeded_generators():
        generator.seed()
    loaded: Dict[str, Any] = dict(sys.modules)
    for name in ("multiprocessing.process", "multiprocess.process"):
        if name in loaded:
            loaded[name].current_process().authkey = os.urandom(32)
    if "transformers.utils.hub" in loaded:  # sent to the hub
        loaded["transformers.utils.hub"].SESSION_ID = os.urandom(16).hex()
    if "logging" in loaded:  # what %(relativeCreated)s counts from
        logging = loaded["logging"]
        whole = isinstance(logging._startTime, int)  # noqa: SLF001 - since Python 3.13
        logging._startTime = time.time_ns() if whole else time.time()  # noqa: SLF001
    if "threading" in loaded:
        loaded["threading"].main_thread()._set_native_id()  # noqa: SLF001
