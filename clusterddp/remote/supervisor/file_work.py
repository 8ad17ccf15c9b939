"""The file work of a supervisor, in one thread: a disk that stalls holds up neither run control nor the fence's lease.

Jobs are done one by one in the order in which they were given. What a step of the node depends on is asked for turn
after turn until it is done (``ask``). What comes again, or can be lost, is given away (``later``).
"""

import queue
import threading
import time
from typing import Any, Callable, Dict, Generic, Optional, TypeVar

from ..spool.layout import Spool

HELD_UP = 60.0  # seconds after which what is asked for counts as failed, and is waited for all the same

T = TypeVar("T")


class FileResult(Generic[T]):
    """What a job has returned."""

    def __init__(self, value: T) -> None:
        self.value = value


class _FileTask:
    """``name``: of one that a newer one may replace while it waits; ``asked``: somebody waits for its end."""

    def __init__(self, work: Callable[[], Any], *, name: str = "", asked: bool = False) -> None:
        self.work, self.name, self.asked = work, name, asked
        self.since = time.monotonic()
        self.done = False
        self.value: Any = None
        self.error: Optional[Exception] = None


class FileWork:
    """The thread and what it has to do; its methods are the loop's.

    Args:
        wake: Called from the thread when a job that was asked for is done.
    """

    def __init__(self, wake: Callable[[], object]) -> None:
        self._wake = wake
        self._jobs: "queue.SimpleQueue[Optional[_FileTask]]" = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._waiting: Dict[str, _FileTask] = {}
        self._asked: Dict[str, _FileTask] = {}
        self._thread = threading.Thread(target=self._run, name="file work", daemon=True)
        self._thread.start()

    def do(self, work: Callable[[], object]) -> None:
        """Have it done once, behind all that was given before; it raises nothing."""
        self._jobs.put(_FileTask(work))

    def later(self, name: str, work: Callable[[], object]) -> None:
        """The same, in place of one of this name that still waits: where a disk stalls, one of each waits."""
        with self._lock:
            job = self._waiting.get(name)
            if job:
                job.work = work
                return
            job = self._waiting[name] = _FileTask(work, name=name)
        self._jobs.put(job)

    def event(self, spool: Spool, name: str, **fields: Any) -> None:
        """Append an event of now."""
        now = time.time_ns()
        self.do(lambda: spool.event(name, time=now, **fields))

    def noted(self, spool: Spool, name: str, **fields: Any) -> Callable[[], bool]:
        """Append an event, of now or ``time``; returns what tells whether it is on record. The loop is woken then."""
        now = time.time_ns()
        job = _FileTask(lambda: spool.event(name, **{"time": now, **fields}), asked=True)
        self._jobs.put(job)
        return lambda: job.done

    def ask(self, name: str, work: Callable[[], T]) -> Optional[FileResult[T]]:
        """What the work has returned, once; None until it is done. It is begun by the first call of this name.

        Raises:
            TimeoutError: it is held up; it may be asked for again.
            Exception: its own error; the next call begins it anew.
        """
        job = self._asked.get(name)
        if job is None:
            job = self._asked[name] = _FileTask(work, asked=True)
            self._jobs.put(job)
        if not job.done:
            if time.monotonic() - job.since > HELD_UP:
                raise TimeoutError("%s is held up: a disk does not answer" % name)
            return None
        del self._asked[name]
        if job.error:
            raise job.error
        return FileResult(job.value)

    def is_asked(self, name: str) -> bool:
        """Whether that was begun, and its answer was not taken yet."""
        return name in self._asked

    def close(self, patience: float) -> None:
        """Wait for what was given, at most so many seconds."""
        self._jobs.put(None)
        self._thread.join(patience)

    def _run(self) -> None:
        for job in iter(self._jobs.get, None):
            with self._lock:
                if self._waiting.get(job.name) is job:
                    del self._waiting[job.name]
            try:
                job.value = job.work()
            except Exception as error:  # noqa: BLE001 - for who asked; what nobody asks for is guarded by its giver
                job.error = error
            job.done = True
            if job.asked:
                self._wake()
