"""``clusterddp forward``: make ports of hosts available on this machine, for TensorBoard, Jupyter and the like."""

from __future__ import annotations

import contextlib
import functools
import signal
import sys
import threading
from typing import TYPE_CHECKING

from clusterddp.cli import interrupts
from clusterddp.cli.choose_host import find_entry, host_of_rank
from clusterddp.cli.output import put, say
from clusterddp.cli.session import open_cluster
from clusterddp.launch import answering
from clusterddp.shell.forward import Forward, forward_spec

if TYPE_CHECKING:
    from pathlib import Path

    from clusterddp.api.cluster import Cluster
    from clusterddp.shell.forward import ForwardSpec


def act(inventory: Path | None, ports: tuple[str, ...], run: str | None) -> int:
    """Forward the ports until Ctrl-C; return the exit code."""
    with open_cluster(inventory, None) as cluster, contextlib.ExitStack() as forwards:
        interrupts.treat_as_ctrl_c(signal.SIGTERM)
        for spec in map(forward_spec, ports):
            host = _resolve_host(cluster, spec, run)
            forward = Forward(functools.partial(cluster.host, host), spec.port, say)
            forwards.callback(forward.close)
            put(f"http://127.0.0.1:{forward.local_port} is {host}:{spec.port}")
        sys.stdout.flush()
        say("Ctrl-C ends it")
        with contextlib.suppress(KeyboardInterrupt):
            threading.Event().wait()
    return 0


def _resolve_host(cluster: Cluster, spec: ForwardSpec, run: str | None) -> str:
    """Connect to the host that a port is of: by name, by rank of ``run``, else the first node; return its name."""
    if spec.host:
        name = find_entry(cluster, spec.host).name
    elif spec.rank is not None:
        name = host_of_rank(cluster, spec.rank, run)
    else:
        name = answering.nodes(cluster.inventory)[0].name
    return cluster.host(name).name
