"""Fetching chunks from a host that may send anything, or nothing."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from clusterddp.errors import HelperError
from clusterddp.remote.shared.wire.chunks import Chunk
from clusterddp.sync.transfer.fetch import ChunkLocation, fetch_chunks

if TYPE_CHECKING:
    from collections.abc import Iterator

    from clusterddp.remote.shared.wire.frames import Frame


def test_a_host_that_sends_nothing_is_waited_for_only_so_long() -> None:
    def stream(_op: str, _args: object, *, patience: float | None = None) -> Iterator[Frame]:
        assert patience is not None, "it would be waited for without end"
        raise HelperError("gpu00", "the operation took too long")
        yield

    host: Any = SimpleNamespace(name="gpu00", entry=SimpleNamespace(connection="ssh"), stream=stream)
    location = ChunkLocation(chunk=Chunk("0" * 40, 5), path="a", offset=0)
    with pytest.raises(HelperError, match="gpu00: the operation took too long"):
        list(fetch_chunks(host, "/root", [location]))
