"""Nodes started through the real helper: plans with any program as the agent, and what can be asked of the spool.

Not covered here: the command line and everything before the plan (test_main_job).
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import io
import json
import os
import signal
import sys
import textwrap
import zipfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from clusterddp.hosts.zipapp import PACKAGE, Bundle, bundle
from clusterddp.launch.prepare import new_run_id
from clusterddp.remote.processes import roster
from clusterddp.remote.shared.run.event_schema import event_json, of_kind
from clusterddp.remote.shared.run.host_settings import HostSettings
from clusterddp.remote.shared.run.node_env import Node
from clusterddp.remote.shared.run.run_record import RunRecord
from clusterddp.remote.shared.schema.json_text import read_json
from clusterddp.remote.shared.schema.record import to_fields
from clusterddp.remote.spool.layout import Spool
from clusterddp.runs.node_answers import query_nodes
from tests.integration.real_helper import alive, wait_for
from tests.unit.plan_made import changed, changed_node, launch_plan

if TYPE_CHECKING:
    from collections.abc import Iterator

    from clusterddp.hosts.client import Host
    from clusterddp.launch.make_plan import LaunchPlan
    from clusterddp.remote.shared.verdict.node_report import NodeReport

PORTS = (29300, 29399)


def with_constant(module: str, old: str, new: str) -> Bundle:
    """The zipapp with one line of a module changed: a supervisor that is less patient."""
    return with_constants((module, old, new))


@functools.cache
def with_constants(*changes: tuple[str, str, str]) -> Bundle:
    """The zipapp with some lines changed: (module, old, new)."""
    with zipfile.ZipFile(io.BytesIO(bundle().code)) as source:
        members = {name: source.read(name) for name in source.namelist()}
    texts = {name: data.decode() for name, data in members.items() if name.endswith(".py")}
    others = {name: data for name, data in members.items() if name not in texts}
    for module, old, new in changes:
        name = f"{PACKAGE}/{module}.py"
        assert texts[name].count(old) == 1, old
        others.pop(f"{name}c", None)
        texts[name] = texts[name].replace(old, new)
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as target:
        for name, text in texts.items():
            target.writestr(name, text)
        for name, data in others.items():
            target.writestr(name, data)
    code = buffer.getvalue()
    return Bundle(code=code, digest=hashlib.sha256(code).hexdigest())


@dataclass(kw_only=True, slots=True)
class Started:
    """One node of a run, as its host knows it."""

    host: Host
    run: str
    spool: Spool
    answer: dict[str, Any] = field(default_factory=dict)

    def commit(self) -> dict[str, Any]:
        committed: dict[str, Any] = self.host.call("commit", {"spool": self.spool.folder})
        return committed

    def events(self, name: str) -> list[dict[str, Any]]:
        return [event_json(event) for event in of_kind(self.spool.events(), name)]

    def account(self) -> str:
        """All that is on record of the node and what its agent said, for the message of a failure."""
        return "\n".join([self.host.name, *(str(event_json(event)) for event in self.spool.events()), self.said()])

    def event(self, name: str) -> dict[str, Any]:
        """The first event of that name, waited for."""
        first: dict[str, Any] = wait_for(lambda: self.events(name), f"event {name}")[0]
        return first

    def said(self, name: str = "agent.out") -> str:
        path = Path(self.spool.path("logs", name))
        return path.read_text() if path.exists() else ""

    def word(self, prefix: str) -> str:
        """What the agent printed behind ``prefix``, waited for."""

        def look() -> list[str]:
            lines = self.said().splitlines(keepends=True)
            return [line[len(prefix) :].strip() for line in lines if line.startswith(prefix) and line.endswith("\n")]

        found: str = wait_for(look, f"{prefix!r} of the agent")[0]
        return found

    def pids(self, *names: str) -> list[int]:
        return [int(self.word(f"{name} ")) for name in names]

    def ended(self) -> dict[str, Any]:
        """The exit record, once the supervisor is gone."""
        wait_for(lambda: self.spool.exit_record() and not self.spool.alive(), "the exit record")
        record = self.spool.exit_record()
        assert record
        return to_fields(record)

    def stop(self, grace: float = 0.0, reason: str = "by a test") -> dict[str, Any]:
        order = {"run": self.run, "hosts": [self.host.name], "grace": grace, "reason": reason}
        proof: dict[str, Any] = self.host.call("stop", order, timeout=60)
        return proof

    def status(self) -> NodeReport:
        (told,) = query_nodes(self.host, self.run, lambda _line: None)
        return told

    @property
    def supervisor(self) -> int:
        return int(json.loads(Path(self.spool.path("supervisor.json")).read_text())["pid"])


def node(host: Host, folder: Path, run: str, *, nproc: int = 1, **more: Any) -> Node:
    """This machine's part in a run: no interface, the loopback."""
    work = folder / "work"
    work.mkdir(exist_ok=True)
    known: dict[str, Any] = {
        "host": host.name,
        "nproc": nproc,
        "address": "127.0.0.1",
        "interface": None,
        "python": sys.executable,
        "env": {"OMP_NUM_THREADS": "1"},
        "secrets": (),
        "settings": HostSettings(ports=PORTS),
        "workdir": str(work),
        "cwd": str(work),
        "run_dir": f"{host.hello.state}/rundirs/{run}-{host.name}",
    }
    return changed_node(Node(**known), **more)


def plan_of(nodes: list[Node], run: str, *, script: str = "train.py", **options: Any) -> LaunchPlan:
    """The plan of real torchrun over these nodes, on code that no sync has put."""
    record = RunRecord(run=run, hosts=tuple(one.host for one in nodes), started=1)
    return launch_plan(nodes, run, script=script, record=record, **options)


def agent_plan(host: Host, folder: Path, program: str, **changes: Any) -> dict[str, Any]:
    """A node's plan whose agent is ``program`` (Python) in place of torchrun, without a store."""
    run = changes.pop("run", None) or new_run_id()
    (folder / "work").mkdir(exist_ok=True)
    (folder / "work" / f"{run}.py").write_text(textwrap.dedent(program))
    plan = plan_of([node(host, folder, run)], run).node_plan(0)
    return to_fields(changed(plan, **{"argv": ("-u", f"{run}.py"), "store": None, **changes}))


def start(host: Host, plan: dict[str, Any], secrets: dict[str, str] | None = None) -> Started:
    """Start one node, uncommitted."""
    message = json.dumps({"plan": plan, "secrets": secrets or {}, "key": "of run control"}).encode()
    answer = host.upload("start", {}, [message], timeout=60)
    return Started(host=host, run=plan["run"], spool=Spool(answer["spool"]), answer=answer)


@contextlib.contextmanager
def running(
    host: Host, folder: Path, program: str, secrets: dict[str, str] | None = None, **changes: Any
) -> Iterator[Started]:
    """A node under way, committed; whatever the test leaves of it is stopped."""
    started = start(host, agent_plan(host, folder, program, **changes), secrets)
    try:
        started.commit()
        yield started
    finally:
        started.stop()


def on_the_roll(node: Started, *pids: int) -> None:
    """Wait until the supervisor has written them down."""

    def listed() -> bool:
        value = read_json(node.spool.path(roster.ROSTER_FILE)) or {"members": []}
        return set(pids) <= {pid for pid, _, _ in value["members"]}

    wait_for(listed, f"{pids} on the roster")


def kill_supervisor(node: Started) -> None:
    """And its fence, which else would end the rest: as `kill -9 -1` does, or the kernel when memory runs out."""
    fence = fence_of(node.supervisor)
    os.kill(node.supervisor, signal.SIGSTOP)
    for pid in (fence, node.supervisor):
        os.kill(pid, signal.SIGKILL)
    wait_for(lambda: not node.spool.alive(), "the supervisor's end")


def fence_of(supervisor: int) -> int:
    """The process above a supervisor."""
    return int(Path(f"/proc/{supervisor}/stat").read_text().rpartition(")")[2].split()[1])


def gone(*pids: int) -> bool:
    """Whether none of them is left."""
    return not any(alive(pid) for pid in pids)


def modes(folder: Path) -> dict[str, int]:
    """The rights of everything below a folder, by relative path; what torchrun itself makes is its own affair."""
    found = {}
    for path in folder.rglob("*"):
        inside = path.relative_to(folder).as_posix()
        if "/torch/" not in inside and "__pycache__" not in inside:
            found[inside] = os.lstat(path).st_mode & 0o777
    return found
