"""Lines a second from log files to labelled bytes in one process, without a network: tail → frames → text.

A figure for the work of both ends together; the merge of real hosts is another benchmark's.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from clusterddp.logs.fold import Fold  # noqa: E402
from clusterddp.logs.incoming import read_frame  # noqa: E402
from clusterddp.logs.render import JsonRenderer, Renderer, TextRenderer  # noqa: E402
from clusterddp.logs.screen import TerminalRenderer  # noqa: E402
from clusterddp.remote.helper.request import Request  # noqa: E402
from clusterddp.remote.logs.tail import tail  # noqa: E402
from clusterddp.remote.logs.time_index import IndexWriter  # noqa: E402
from clusterddp.remote.shared.wire.frames import Decoder, encode  # noqa: E402
from clusterddp.remote.spool.events import append_event  # noqa: E402
from tests.unit.plan_made import plan_text  # noqa: E402 - tests live in the project, not in site-packages

LINES = 500_000  # of 80 bytes, over four workers


class Pipe(Request):
    """A request whose every frame is encoded, decoded, checked and rendered in this process."""

    def __init__(self, spool: Path, renderer: Renderer | None, **args: Any) -> None:
        super().__init__(1, {"spool": str(spool), **args}, -1, -1)
        self.bytes = 0
        self._renderer, self._frames = renderer, Decoder()

    def send(self, body: bytes, **header: Any) -> None:
        """A frame, all the way."""
        if self._renderer is None:
            self.bytes += len(body)
            return
        for frame in self._frames.feed(encode({"id": 1, "kind": "data", **header}, body)):
            if "hello" not in header:
                self.bytes += len(self._renderer.feed("gpu01", read_frame(frame)))


def make(base: Path) -> Path:
    """A spool of four workers that have printed."""
    spool = base / "runs" / "bench" / "0" / "0-gpu01"
    (spool / "logs").mkdir(parents=True)
    (spool / "plan.json").write_text(plan_text())
    index = IndexWriter(str(spool / "logs"))
    for rank in range(4):
        append_event(str(spool / "events.jsonl"), "worker_started", start=0, local_rank=rank, rank=rank)
    for step in range(10):
        for rank in range(4):
            with (spool / "logs" / f"0.{rank}.out").open("ab") as file:
                file.write(b"".join(b"%-79d\n" % number for number in range(LINES // 40)))
        index.poll(time.time_ns() + step * 10**8)
    index.finish(time.time_ns() + 10**9)
    (spool / "exit.json").write_text(
        json.dumps({"state": "succeeded", "exit_code": 0, "reason": "", "ended": time.time_ns()})
    )
    return spool


def main() -> None:
    """Measure and print."""
    folding = TextRenderer()
    folding.fold(Fold())
    cases: list[tuple[str, Renderer | None, dict[str, Any]]] = [
        ("tail alone", None, {}),
        ("tail → text", TextRenderer(), {}),
        ("tail → text, -t", TextRenderer(timestamps=True), {"timed": True}),
        ("tail → text, --fold", folding, {}),
        ("tail → terminal", TerminalRenderer(width=lambda: 80), {}),
        ("tail --grep 7 → text", TextRenderer(), {"grep": "7"}),
        ("tail → json", JsonRenderer(), {"timed": True}),
    ]
    with tempfile.TemporaryDirectory() as base:
        spool = make(Path(base))
        for name, renderer, args in cases:
            began = time.perf_counter()
            tail(Pipe(spool, renderer, **args))
            seconds = time.perf_counter() - began
            print(f"{name:22} {LINES / seconds / 1e3:9,.0f} k lines/s  {LINES * 80 / seconds / 1e6:7,.0f} MB/s")


if __name__ == "__main__":
    main()
