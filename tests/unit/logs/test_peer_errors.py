"""On a terminal: torch's own rank is not repeated, and a traceback of a lost peer is one line."""

from __future__ import annotations

import pytest

from clusterddp.logs.checked_frames import FilePart, Lines
from clusterddp.logs.fold import Fold
from clusterddp.logs.render import Renderer, TextRenderer
from clusterddp.logs.screen import TerminalRenderer

FRAMES = """Traceback (most recent call last):
  File "/home/u/train.py", line 8, in <module>
    dist.all_reduce(torch.ones(3))
  File "/env/lib/python3.11/site-packages/torch/distributed/distributed_c10d.py", line 3252, in all_reduce
    work.wait()
"""
GLOO = "RuntimeError: [/pytorch/gloo/transport/tcp/pair.cc:553] Connection closed by peer [10.0.0.2]:4. GLHF!"
RESET = "RuntimeError: [/pytorch/gloo/transport/tcp/pair.cc:537] Read error [10.0.0.2]:4: Connection reset by peer."
NCCL = "torch.distributed.DistBackendError: NCCL error in: x.cpp:1, remote process exited or there was a network error"


def terminal(*, whole: bool = False) -> Renderer:
    return TerminalRenderer(width=lambda: 200, colour=False, whole=whole)


def shown(renderer: Renderer, said: str, rank: int | None = 1) -> str:
    body = said.encode()
    return (renderer.feed("gpu01", lines(body, rank, 0)) + renderer.hide()).decode()


def lines(body: bytes, rank: int | None, local_rank: int) -> Lines:
    part = FilePart(
        file=f"0.{local_rank}.err",
        start=0,
        local_rank=local_rank,
        rank=rank,
        stream="err",
        offset=0,
        next=len(body),
    )
    return Lines(part=part, body=body)


def by_torch(said: str, rank: int = 1) -> str:
    return "".join(f"[rank{rank}]: {line}\n" for line in said.splitlines())


def labelled(said: str) -> str:
    return "".join(f"[1 gpu01:0] {line}\n" for line in said.splitlines())


@pytest.mark.parametrize("error", [GLOO, RESET, NCCL])
def test_a_traceback_of_a_lost_peer_is_one_line_on_a_terminal(error: str) -> None:
    said = f"step 7\n{FRAMES}{error}\nafter\n"
    line = f"{error} (its traceback of 6 lines: --show-all)"
    assert shown(terminal(), said) == labelled(f"step 7\n{line}\nafter")
    assert shown(terminal(), by_torch(said)) == labelled(f"step 7\n{line}\nafter")


def test_with_show_all_it_is_whole() -> None:
    assert shown(terminal(whole=True), by_torch(FRAMES + GLOO)) == labelled(FRAMES + GLOO)


def test_a_file_or_a_pipe_has_every_byte() -> None:
    said = by_torch(FRAMES + GLOO)
    assert shown(TextRenderer(), said) == labelled(said)


@pytest.mark.parametrize(
    "error",
    [
        "ValueError: loss is NaN",
        "ConnectionResetError: [Errno 104] Connection reset by peer",
        "requests.exceptions.ConnectionError: gloo: Connection reset by peer",
        "torch.distributed.DistBackendError: NCCL error in: x.cpp:1, unhandled cuda error",
        "torch.distributed.DistStoreError: Timed out after 601 seconds waiting for clients",
    ],
)
def test_any_other_traceback_is_whole(error: str) -> None:
    assert shown(terminal(), FRAMES + error + "\n") == labelled(FRAMES + error)


def test_a_traceback_that_has_not_all_come_is_whole() -> None:
    assert shown(terminal(), FRAMES) == labelled(FRAMES)
    assert shown(terminal(), "  work.wait()\n" + GLOO + "\n") == labelled("  work.wait()\n" + GLOO)


@pytest.mark.parametrize(
    ("said", "line"),
    [
        ("[rank1]: a", "a"),
        ("[rank1]:[W1123 06:44:59.1 x.cpp:3] a", "[W1123 06:44:59.1 x.cpp:3] a"),
        ("[rank1]:   indented", "  indented"),
        ("[rank2]: another's", "[rank2]: another's"),
        ("[rank11]: another's", "[rank11]: another's"),
        ("see [rank1]: in the middle", "see [rank1]: in the middle"),
        ("[rank1]:glued", "[rank1]:glued"),
    ],
)
def test_torchs_own_rank_is_shown_once(said: str, line: str) -> None:
    assert shown(terminal(), said + "\n") == f"[1 gpu01:0] {line}\n"
    assert shown(terminal(), said + "\n", rank=None) == f"[? gpu01:0] {said}\n"


def test_equal_lines_of_ranks_fold_though_torch_puts_the_rank_before_them() -> None:
    renderer = terminal()
    renderer.fold(Fold())
    for rank in (0, 1):
        body = by_torch("no gradient", rank).encode()
        renderer.feed("gpu01", lines(body, rank, rank))
    assert renderer.hide() == b"[0,1] no gradient\n"
