"""The kernel's messages: from the journal, else from the ring, else not at all."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import pytest

from clusterddp.remote.system import kernel_log
from clusterddp.remote.system.kernel_log import LastMessages, read_ring, ring_message

if TYPE_CHECKING:
    from pathlib import Path


def test_records_of_the_kernels_ring_have_their_time() -> None:
    now = time.time()
    record = b"6,1234,5000000,-;NVRM: Xid (PCI:0000:07:00): 79, pid=1\n SUBSYSTEM=pci\n"
    found = ring_message(record, now - 60)
    assert found is not None
    assert found[0] == pytest.approx(now - 55)
    assert found[1] == "NVRM: Xid (PCI:0000:07:00): 79, pid=1"
    assert ring_message(b"no record", 0.0) is None


def test_a_ring_that_may_not_be_read_is_none(tmp_path: Path) -> None:
    assert read_ring(str(tmp_path / "none")) is None


@pytest.mark.parametrize(
    ("script", "ring", "text"),
    [
        ("echo $*", [], "-k -b -q --no-pager -n 2 -o short-iso\n"),
        ("exit 1", [(0.0, "a"), (0.0, "b"), (0.0, "c")], "1970-01-01T00:00:00+0000 b\n1970-01-01T00:00:00+0000 c\n"),
        ("exit 1", None, None),
        (None, None, None),
    ],
    ids=["journal", "ring", "denied", "no journal"],
)
def test_the_last_messages_come_from_where_they_may_be_read(
    script: str | None,
    ring: list[tuple[float, str]] | None,
    text: str | None,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if script:
        program = tmp_path / "journalctl"
        program.write_text(f"#!/bin/sh\n{script}\n")
        program.chmod(0o700)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(kernel_log, "read_ring", lambda: ring)
    monkeypatch.setattr(time, "localtime", time.gmtime)
    monkeypatch.setattr(time, "strftime", lambda form, at, was=time.strftime: was(form.replace("%z", "+0000"), at))
    assert LastMessages({"PATH": f"{tmp_path}:/bin"}, 2, 10.0).text() == text
