"""The keywords of ``Cluster.run``; `python -m tests.run_keywords` makes this file from ``RunOptions``."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypedDict

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping


class RunKeywords(TypedDict, total=False):
    """The keywords of ``Cluster.run``: the command line's options by their names, with ``_`` for ``-``."""

    nnodes: int | str | tuple[int, int] | None
    nproc_per_node: int | str | None
    gpus: str | None
    share_gpus: bool
    env: Mapping[str, str]
    secret: str | Iterable[str]
    name: str | None
    array: str | None
    time_limit: float | str | None
    grace: float | str
    max_restarts: int
    relaunch: int
    stall: float | str | None
    on_stall: str
    on_disconnect: str
    sync_limit: int | str | None
    spread: str
    take: str | None
    log_limit: int | str | None
    no_sync: bool
    no_fork_server: bool
    no_comm_trace: bool
    pdb: bool
    breakpoint_timeout: float | str | None
    no_doctor: bool
    skip: str | Iterable[str]
    workdir: str | None
    launcher: str | None
    rdzv_backend: str
    torchrun_arg: str | Iterable[str]
    pass_local_rank: bool
    debug_comm: bool
    module: bool
    limit: str | None
