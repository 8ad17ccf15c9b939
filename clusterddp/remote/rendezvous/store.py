"""Run the rendezvous store of a run: torch's own TCPStore, in a process of its own.

The training interpreter runs it on the rendezvous host. The supervisor listens on the port already, so early clients
wait in the backlog, and no other program can take the port in between. As the store is no child of an agent, it
outlives all agents: nodes may end minutes apart.
"""

import resource
import signal
import socket
import sys
from functools import partial
from typing import Any, List

from ..system.procfs import ESTABLISHED, tcp_ports


def main(argv: List[str]) -> int:
    """Serve on the listening socket inherited as file descriptor ``argv[0]`` until a signal ends this process.

    With ``argv[1]`` = ``quick`` only torch's C++ part is imported, which takes a quarter of the time while the agents
    of the same host import all of torch. If that fails with this torch, this process ends, and the supervisor starts it
    again without ``quick``.
    """
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))  # every agent of the run connects, more than once
    handle = int(argv[0])
    listener = socket.socket(fileno=handle)
    address, port = listener.getsockname()[:2]
    listener.detach()  # the store closes it
    client_address = "localhost" if address in ("0.0.0.0", "::") else address  # noqa: S104 - where the store's own client connects
    store_class = _quick_class() if argv[1:] == ["quick"] else _plain_class()
    start_store = partial(
        store_class, client_address, port, is_master=True, wait_for_workers=False, master_listen_fd=handle
    )
    try:
        store = start_store()
    except NotImplementedError:  # with libuv, the default from torch 2.4 on, some versions (2.6) cannot take a socket
        store = start_store(use_libuv=False)
    sys.stdout.write("serving on port %d\n" % store.port)
    sys.stdout.flush()
    while True:
        signal.pause()


def _plain_class() -> Any:
    import torch.distributed  # type: ignore[import-not-found,unused-ignore]

    return torch.distributed.TCPStore  # type: ignore[attr-defined,unused-ignore]


def _quick_class() -> Any:
    """Import TCPStore from the extension module alone, with empty modules in place of torch's Python packages."""
    import importlib
    import importlib.util
    import types

    spec = importlib.util.find_spec("torch")
    if spec is None:
        raise ImportError("no torch")
    torch = types.ModuleType("torch")
    torch.__path__ = list(spec.submodule_search_locations or ())
    sys.modules.update({"torch": torch, "torch.distributed": types.ModuleType("torch.distributed")})
    importlib.import_module("torch._C")._c10d_init()  # noqa: SLF001 - what torch.distributed itself calls
    return importlib.import_module("torch._C._distributed_c10d").TCPStore


def count_clients(port: int) -> int:
    """Return how many agents are connected to the store of this host, not counting the store's own connection."""
    return max(0, tcp_ports(ESTABLISHED).count(port) - 1)
