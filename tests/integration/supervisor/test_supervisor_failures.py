"""What fails inside a supervisor, and messages that are lost: neither ends it, and there is always a verdict.

The failures are put into the code that is sent to the host.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import pytest

from clusterddp.errors import HelperError
from clusterddp.hosts.client import Host
from clusterddp.hosts.fanout import each, values
from clusterddp.hosts.ssh import Connector
from tests.integration.real_helper import Shell, entry, opened, wait_for
from tests.integration.runs_started import running, with_constants
from tests.integration.supervisor.test_run_control import IMPATIENT, NAMES, Job
from tests.integration.supervisor.test_supervisor import WAITS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from tests.integration.runs_started import Started

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="hosts are Linux")

NODE = "supervisor/node"
INBOX = "supervisor/inbox"
READ = "order = self.spool.stop_order()"
EIO = "(lambda: os.pread(os.open('/proc/self/mem', os.O_RDONLY), 1, 0))()"  # page 0 cannot be read


def failures(node: Started, handler: str) -> list[dict[str, Any]]:
    return [event for event in node.events("handler_failed") if event["handler"] == handler]


@contextlib.contextmanager
def changed(folder: Path, *changes: tuple[str, str, str]) -> Iterator[Started]:
    """A node whose supervisor has some lines changed; its agent waits."""
    code = with_constants(*changes)
    with Host.open(entry(folder / "state"), Shell("/bin/sh"), code) as host, running(host, folder, WAITS) as node:
        node.word("agent")
        yield node


class TestHandlers:
    def test_one_that_raises_is_on_record_and_tried_again_and_the_run_goes_on(self, tmp_path: Path) -> None:
        with changed(tmp_path, (NODE, '"output limits": self.limits.poll', '"output limits": lambda: 1 / 0')) as node:
            wait_for(lambda: len(failures(node, "output limits")) >= 4, "four tries")
            tries = failures(node, "output limits")[:4]
            assert [one["times"] for one in tries] == [1, 2, 3, 4]
            assert "ZeroDivisionError" in tries[0]["error"]
            assert "node.py" in tries[0]["traceback"]
            pauses = [(after["time"] - before["time"]) / 1e9 for before, after in pairwise(tries)]
            assert pauses[0] < pauses[1] < pauses[2]
            assert node.stop()["proved_empty"]
            assert node.ended()["reason"] == "by a test"

    def test_an_error_while_reading_an_order_ends_nothing_and_the_order_is_read_later(self, tmp_path: Path) -> None:
        broken = f"{EIO} if time.monotonic() - self.born < 3 else None; {READ}"
        born = ("        self.lease = 0.0", "        self.born = time.monotonic()\n        self.lease = 0.0")
        imports = ("from typing import ", "import os\nimport time\nfrom typing import ")
        with changed(tmp_path, (INBOX, READ, broken), (INBOX, *born), (INBOX, *imports)) as node:
            wait_for(lambda: failures(node, "record of a stop"), "an error")
            assert "OSError" in failures(node, "record of a stop")[0]["error"]
            assert node.stop()["proved_empty"]
            assert node.ended()["reason"] == "by a test"

    @pytest.mark.parametrize(("module", "name"), [(NODE, "stop"), ("supervisor/stop_conditions", "time limit")])
    def test_where_what_ends_a_run_fails_by_a_mistake_of_ours_the_part_ends(
        self, tmp_path: Path, module: str, name: str
    ) -> None:
        old = {"stop": '"stop": lambda: self.stop', "time limit": '"time limit": self._time_limit'}[name]
        late = f'"{name}": lambda: 1 // (0 if os.path.exists({str(tmp_path / "fail")!r}) else 2) or None'
        imports = (module, "import time\n", "import os\nimport time\n")
        with changed(tmp_path, (module, old, late), *([imports] if module != NODE else [])) as node:
            (tmp_path / "fail").touch()
            assert node.ended()["reason"].startswith(f"internal error: {name}: ZeroDivisionError")


@pytest.fixture
def job(tmp_path: Path) -> Iterator[Callable[..., Job]]:
    """Starts a job on three nodes whose supervisors have some lines changed."""
    connector = Connector()
    with contextlib.ExitStack() as stack:
        stack.callback(connector.close)

        def start(*changes: tuple[str, str, str], **options: Any) -> Job:
            code = with_constants(*IMPATIENT, *changes)
            entries = [entry(tmp_path / "state", name) for name in NAMES]
            hosts = values(each(entries, lambda wanted: Host.open(wanted, connector, code)))
            for host in hosts:
                stack.enter_context(host)
            made = Job(hosts, tmp_path, **options)
            stack.callback(made.end)
            made.at_work()
            return made

        yield start


class TestLostMessages:
    def test_a_decision_that_reached_nobody_is_told_again(self, job: Callable[..., Job]) -> None:
        dropped = ("control/membership", "        self.control.send(decision)\n", "")
        run = job(dropped, relaunch=1)
        os.kill(run.nodes[1].pids("agent")[0], signal.SIGKILL)
        again = [run.started(2, name) for name in NAMES]
        assert [one.ended()["state"] for one in again] == ["succeeded"] * 3

    def test_a_node_that_never_hears_of_the_next_attempt_is_named_and_the_run_ends(
        self, job: Callable[..., Job]
    ) -> None:
        heard = "            self._take_decision("
        deaf = ("control/membership", heard, heard.replace("self", "self.member == 2 or self", 1))
        hasty = ("supervisor/stop_conditions", "grace=1.0, behind=30.0", "grace=1.0, behind=2.0")
        run = job(deaf, hasty, relaunch=1)
        os.kill(run.nodes[1].pids("agent")[0], signal.SIGKILL)
        again = [run.started(2, name) for name in NAMES[:2]]
        assert {one.ended()["final"] for one in again} == {"all 1 relaunches are used"}
        assert run.nodes[2].ended()["final"]
        assert run.view().verdict()


def test_who_makes_an_attempt_ready_too_late_has_no_part_in_it(job: Callable[..., Job]) -> None:
    """As on a disk that stalls then; the others, who see it there, may have given it up, and may not."""
    made = "        old = node.spool\n"
    slow = ("supervisor/relaunch", made, f"{made}        time.sleep(1.5 if node.member == 2 else 0.0)\n")
    hasty = ("supervisor/stop_conditions", "grace=1.0, behind=30.0", "grace=1.0, behind=2.0")
    run = job(slow, hasty, relaunch=1)
    os.kill(run.nodes[1].pids("agent")[0], signal.SIGKILL)
    assert {run.started(2, name).ended()["final"] for name in NAMES[:2]} == {"all 1 relaunches are used"}
    late = run.started(2, NAMES[2])
    reason = late.ended()["reason"]
    assert reason in {"three was too late for attempt 2", "attempt 3 was decided meanwhile"}
    assert not late.events("agent_started")
    assert run.view().verdict()


def test_a_run_of_another_version_cannot_be_joined(tmp_path: Path) -> None:
    with (
        changed(tmp_path, (NODE, "LEAVE_TIMEOUT = 5.0", "LEAVE_TIMEOUT = 4.0")) as node,
        opened(tmp_path / "state") as guide,
    ):
        with pytest.raises(HelperError, match="another version of clusterddp; join it with that version"):
            guide.call("invite", {"spool": node.spool.folder})
        assert node.host.call("invite", {"spool": node.spool.folder})["plan"]["run"] == node.run
