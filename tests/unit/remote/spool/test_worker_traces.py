"""What a node has of its failed workers: those on record; where none could be written, all that were started."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from clusterddp.remote.shared.run.plan import AGENT_LOG
from clusterddp.remote.spool.layout import Spool
from clusterddp.remote.spool.worker_traces import evidence
from tests.unit.spool_writer import Writer

if TYPE_CHECKING:
    from pathlib import Path

AGENT = b"torch.distributed.elastic.multiprocessing.errors.ChildFailedError:\n"


@pytest.fixture
def writer(tmp_path: Path) -> Writer:
    """Two workers were started, and the second said what went wrong."""
    made = Writer(tmp_path)
    for local in range(2):
        made.start(local, rank=local)
        made.write(f"0.{local}.err", b"a warning\n" if not local else b"RuntimeError: a bad batch\n")
    return made


def quoted(writer: Writer) -> set[str]:
    return set(evidence(Spool(str(writer.folder))).stderr) - {"agent"}


def test_a_worker_that_failed_is_quoted_alone(writer: Writer) -> None:
    writer.write(AGENT_LOG, AGENT)
    writer.exit(1, rank=1, code=1)
    assert quoted(writer) == {"0.1"}


def test_where_the_agent_blames_a_worker_and_none_is_on_record_all_are_quoted(writer: Writer) -> None:
    assert quoted(writer) == set()  # they live
    writer.write(AGENT_LOG, AGENT)
    assert quoted(writer) == {"0.0", "0.1"}
