"""What goes on while a start still connects."""

from __future__ import annotations

import logging
import threading
from typing import TYPE_CHECKING

from clusterddp.hosts.connections import Connections
from clusterddp.hosts.spans import LOGGER
from clusterddp.hosts.ssh import Connector
from clusterddp.inventory import HostEntry
from clusterddp.launch.options import RunOptions
from clusterddp.launch.overlap import Early
from clusterddp.project.project import find
from clusterddp.runs.timeline import THIS_MACHINE

if TYPE_CHECKING:
    from pathlib import Path

    import pytest

    from clusterddp.hosts.ssh import BytePipe


class Ended(logging.Handler):
    """Says when a step has ended."""

    def __init__(self, *awaited: tuple[str, str]) -> None:
        super().__init__()
        self.left = set(awaited)
        self.all = threading.Event()

    def emit(self, record: logging.LogRecord) -> None:
        host, name, _ = getattr(record, "span")  # noqa: B009 - a LogRecord has any attributes
        self.left.discard((host, name))
        if not self.left:
            self.all.set()


def test_the_project_is_scanned_and_a_host_tells_its_facts_before_another_one_is_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "project").mkdir()
    (tmp_path / "project" / "train.py").write_text("print(1)\n")
    monkeypatch.chdir(tmp_path / "project")
    before = Ended(("quick", "facts"), (THIS_MACHINE, "scan of the project"))

    class Slow(Connector):
        def open(self, entry: HostEntry, command: str, *, asks: bool = True) -> BytePipe:
            if entry.name == "slow":
                assert before.all.wait(60)
            return super().open(entry, command, asks=asks)

    state = str(tmp_path / "state")
    entries = [HostEntry(name=name, address=name, connection="local", state=state) for name in ("slow", "quick")]
    connections = Connections(Slow(), print)
    caplog.set_level(logging.DEBUG, logger=LOGGER.name)  # not its attribute: a logger remembers what is enabled
    LOGGER.addHandler(before)
    try:
        with Early(find(), RunOptions(script="train.py"), None) as early:
            hosts = [one.get() for one in connections.open_all(entries, lambda _: None, early.ask)]
            assert [one.path for one in early.tree().entries] == ["train.py"]
            assert [told.get().host for told in early.facts(hosts).values()] == ["slow", "quick"]
    finally:
        LOGGER.removeHandler(before)
        connections.close()
