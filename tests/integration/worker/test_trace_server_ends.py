"""Workers that have a server for traces end as ever, in whatever way: none hangs, and none prints a line.

TRACE_SERVER_ENDS=100 tries each of the ends 100 times.
"""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING

import pytest

from clusterddp.remote.processes.worker_server import NoAnswerError, ask
from tests.integration.fork_spool import fork_server, torch_environment
from tests.integration.shim_spool import ShimSpool, make_spool, wait_for
from tests.integration.worker.test_trace_server import ARGUMENTS, run, with_asks
from tests.with_torch import need_torch

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

need_torch()
pytestmark = pytest.mark.torch

ENDS = int(os.environ.get("TRACE_SERVER_ENDS", "4"))  # how often each end is tried
WAYS = {
    "return": ("", 0),
    "return at import": ("import sys; sys.exit(0)", 0),
    "exception": ("raise SystemExit(7)", 7),
    "os._exit": ("import os; os._exit(5)", 5),
    "signal": ("import os, signal; os.kill(os.getpid(), signal.SIGTERM)", -15),
    "kill": ("import os, signal; os.kill(os.getpid(), signal.SIGKILL)", -9),
    "child": ("import os, sys\npid = os.fork()\nif not pid: sys.exit(3)\nsys.exit(os.waitpid(pid, 0)[1] >> 8)", 3),
    "atexit": ("import atexit, asks\natexit.register(lambda: asks.answers() or 1/0)", 0),
    "group": (
        "dist.init_process_group('gloo', store=dist.HashStore(), rank=0, world_size=1); dist.destroy_process_group()",
        0,
    ),
}


@pytest.fixture
def plain(tmp_path: Path) -> ShimSpool:
    """A spool whose workers are started plainly."""
    return with_asks(make_spool(tmp_path))


@pytest.fixture(scope="module")
def forking(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ShimSpool]:
    """A spool whose workers are forked, so that many may end."""
    spool = with_asks(make_spool(tmp_path_factory.mktemp("forking")))
    with fork_server(spool, *ARGUMENTS) as said:
        assert said.endswith("ready\n"), said
        yield spool


@pytest.mark.parametrize("way", WAYS)
def test_workers_that_end_at_once_neither_hang_nor_print(forking: ShimSpool, way: str) -> None:
    text, code = WAYS[way]
    for _ in range(ENDS):
        ended = run(forking, f"import torch.distributed as dist\n{text}\n")
        assert (ended.returncode, ended.out, ended.err) == (code, b"", b"")
        assert forking.events("worker_started")[-1]["forked"]
        start = forking.events("worker_started")[-1]["start"]
        assert (forking.folder / "traces" / f"{start}.0").is_socket()


@pytest.mark.parametrize("way", ["return", "os._exit", "child"])
def test_a_plain_worker_that_ends_at_once_neither_hangs_nor_prints(plain: ShimSpool, way: str) -> None:
    text, code = WAYS[way]
    for _ in range(max(1, ENDS // 4)):
        ended = run(plain, f"import torch.distributed as dist\n{text}\n")
        assert (ended.returncode, ended.out, ended.err) == (code, b"", b"")


def test_workers_that_are_asked_while_they_end_do_so_as_ever(forking: ShimSpool) -> None:
    text = "import torch.distributed as dist, time\ntime.sleep(0.05)\n"
    for _ in range(ENDS):
        (forking.cwd / "script.py").write_text(text)
        start = len(list((forking.folder / "logs").glob("*.0.out")))
        path = forking.folder / "traces" / f"{start}.0"
        with forking.popen(*ARGUMENTS, env=torch_environment()) as process:
            wait_for(path.exists, "the server")
            while process.poll() is None:
                try:
                    ask(str(path), "fr_trace_json", timeout=5, limit=1 << 20)
                except NoAnswerError:
                    time.sleep(0.001)
            assert process.returncode == 0
        assert (forking.folder / "logs" / f"{start}.0.err").read_bytes() == b""
