"""The threads of a worker's server for traces: wait until the one that has answered sleeps again.

Torch's server has a pool of threads. A question wakes the one that has slept longest; one that is still awake from its
last answer takes the question instead. So threads answer strictly in turn only if each sleeps before the next question
is sent, which on a busy machine takes it long after its answer has come.
"""

import time
from typing import Dict, List, Sequence

from ..system.procfs import stat_fields
from ..system.small_files import text_of

POLL_INTERVAL = 0.0002  # seconds
AWAKE = (["R"], ["D"])  # the kernel's state letters: runs or waits for a core; sleeps for a moment, as for its memory


class ServerThreads:
    """The threads of one worker's server that answer, the one first that is expected to answer next."""

    def __init__(self, pid: int, threads: Sequence[str]) -> None:
        # The first one that was made takes calls and gives them to the others.
        self.folders: List[str] = ["/proc/%d/task/%s" % (pid, thread) for thread in threads[1:]]
        self.ran: Dict[str, str] = {}  # folder → its times on a core, when it was last seen asleep

    def rest(self, until: float) -> None:
        """Wait until all sleep, at most until ``until`` of the monotonic clock."""
        for folder in self.folders:
            self._wait(folder, until)

    def rest_again(self, until: float) -> None:
        """Wait until the one sleeps that has answered since the last wait; it is expected to answer last now.

        As they answer in turn only the first has to be looked at, of many.
        """
        for folder in self.folders:
            if text_of(folder + "/schedstat") != self.ran.get(folder):
                self._wait(folder, until)
                self.folders.remove(folder)
                self.folders.append(folder)
                return

    def _wait(self, folder: str, until: float) -> None:
        while stat_fields(folder)[:1] in AWAKE and time.monotonic() < until:
            time.sleep(POLL_INTERVAL)
        self.ran[folder] = text_of(folder + "/schedstat")
