"""A supervisor's file work, in one thread: a disk that stalls delays neither run control nor the fence's lease.

Jobs are done one by one in the order given. Work that a step of the node depends on is requested turn after turn until
it is done (``ask``). Work that is repeated anyway, or may be lost, is queued (``queue_latest``).
"""

import queue
import threading
import time
from typing import Any, Callable, Dict, Generic, Optional, TypeVar

from ..spool.layout import Spool

RESULT_TIMEOUT = 60.0  # seconds after which requested work counts as failed; it still goes on

T = TypeVar("T")


class FileResult(Generic[T]):
    """The return value of a job."""

    def __init__(self, value: T) -> None:
        self.value = value


class _Job:
    """A job; with a ``name`` a newer one may replace it while it waits; ``wakes_loop``: its end wakes the loop."""

    def __init__(self, work: Callable[[], Any], *, name: str = "", wakes_loop: bool = False) -> None:
        self.work, self.name, self.wakes_loop = work, name, wakes_loop
        self.requested_at = time.monotonic()
        self.done = False
        self.value: Any = None
        self.error: Optional[Exception] = None


class FileWork:
    """The thread and its queue; the loop calls all methods."""

    def __init__(self, wake: Callable[[], object]) -> None:
        self._wake = wake
        self._jobs: "queue.SimpleQueue[Optional[_Job]]" = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._replaceable: Dict[str, _Job] = {}  # queued by ``queue_latest`` and not begun, by name
        self._asked: Dict[str, _Job] = {}  # requested by ``ask``, by name, until the result is fetched
        self._failing: Dict[str, float] = {}  # since when (monotonic) requested work fails at every try, by name
        self._thread = threading.Thread(target=self._run, name="file work", daemon=True)
        self._thread.start()

    def do(self, work: Callable[[], object]) -> None:
        """Queue work to be done once, in order; it must not raise."""
        self._jobs.put(_Job(work))

    def queue_latest(self, name: str, work: Callable[[], object]) -> None:
        """Queue work; it replaces a waiting job of this name, so that on a stalled disk at most one per name waits."""
        with self._lock:
            job = self._replaceable.get(name)
            if job:
                job.work = work
                return
            job = self._replaceable[name] = _Job(work, name=name)
        self._jobs.put(job)

    def event(self, spool: Spool, name: str, **fields: Any) -> None:
        """Append an event with the present time."""
        now = time.time_ns()
        self.do(lambda: spool.event(name, time=now, **fields))

    def record_event(self, spool: Spool, name: str, **fields: Any) -> Callable[[], bool]:
        """Append an event, with the present time or ``time``; returns a function that tells whether it is written.

        The loop is woken when it is.
        """
        now = time.time_ns()
        job = _Job(lambda: spool.event(name, **{"time": now, **fields}), wakes_loop=True)
        self._jobs.put(job)
        return lambda: job.done

    def ask(self, name: str, work: Callable[[], T]) -> Optional[FileResult[T]]:
        """Return the result of ``work`` once it is done, and None before; the first call of this name queues it.

        Raises TimeoutError when it takes long: it may be requested again. Raises the work's own error: the next call
        begins it again.
        """
        job = self._asked.get(name)
        if job is None:
            job = self._asked[name] = _Job(work, wakes_loop=True)
            self._jobs.put(job)
        if not job.done:
            if time.monotonic() - job.requested_at > RESULT_TIMEOUT:
                raise TimeoutError("%s is held up: a disk does not answer" % name)
            return None
        del self._asked[name]
        if job.error:
            self._failing.setdefault(name, time.monotonic())
            raise job.error
        self._failing.pop(name, None)
        return FileResult(job.value)

    def failing_since(self) -> float:
        """Return since when (monotonic) requested work fails at every try; infinity if none does."""
        return min(self._failing.values(), default=float("inf"))

    def forget(self, name: str) -> None:
        """Drop the result of work of this name, if any was begun and its result not fetched: nobody needs it."""
        self._asked.pop(name, None)
        self._failing.pop(name, None)

    def is_asked(self, name: str) -> bool:
        """Whether work of this name was begun, and its result not fetched yet."""
        return name in self._asked

    def close(self, timeout: float) -> None:
        """Wait at most ``timeout`` seconds for the queued work."""
        self._jobs.put(None)
        self._thread.join(timeout)

    def _run(self) -> None:
        for job in iter(self._jobs.get, None):
            with self._lock:
                if self._replaceable.get(job.name) is job:
                    del self._replaceable[job.name]
            try:
                job.value = job.work()
            except Exception as error:  # noqa: BLE001 - raised by `ask`; other jobs handle their own errors
                job.error = error
            job.done = True
            if job.wakes_loop:
                self._wake()
