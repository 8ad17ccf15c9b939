"""Messages of jobs: network, rendezvous, collectives, and incompatible software. Data only."""

from __future__ import annotations

from clusterddp.runs.view.known_messages.row import KnownMessage

ROWS = (
    # Network and rendezvous
    KnownMessage(
        name="port-in-use",
        pattern=r"EADDRINUSE|[Aa]ddress already in use",
        cause="the port is taken",
        remedy="leave MASTER_PORT to torchrun, or end what holds it (`ss -ltnp`); clusterddp_ports moves our own range",
        check="ports",
    ),
    KnownMessage(
        name="loopback-name",
        pattern=r"127\.0\.1\.1\]?:\S+|\(127\.0\.1\.1, \d+\)",
        cause="a host took 127.0.1.1, its own name's address in /etc/hosts, for its address in the cluster",
        remedy="remove that line from /etc/hosts, or set GLOO_SOCKET_IFNAME and NCCL_SOCKET_IFNAME to the right card",
        check="own-name",
    ),
    KnownMessage(
        name="gloo-interface",
        pattern=r"Unable to find address for|Unable to resolve hostname to a \(local\) address|ifa != nullptr",
        cause="the network card in GLOO_SOCKET_IFNAME is not on this host",
        remedy="unset it, and a run sets it to the right card; or name one that is there (`ip -br addr` lists them)",
        check="interface",
    ),
    KnownMessage(
        name="nccl-interface",
        pattern=r"no socket interface found|no NCCL_SOCKET_IFNAME interface found|family \d+ is neither AF_INET",
        cause="the network card in NCCL_SOCKET_IFNAME is not on this host, or the hosts have different NCCLs",
        remedy="unset it, or name a card that is there (`ip -br addr` lists them); use one torch on all hosts",
        check="interface",
    ),
    KnownMessage(
        name="nccl-watchdog",
        pattern=r"Watchdog caught collective operation timeout",
        cause="a collective did not end in time: a rank was late, hung, or ran another collective",
        remedy="while it hangs, `clusterddp why` names the rank and its line; more time only helps slow ones",
    ),
    KnownMessage(
        name="nccl-cuda",
        pattern=r"NCCL.*unhandled cuda error|ncclUnhandledCudaError",
        cause="NCCL met a CUDA error",
        remedy="run with --debug-comm, and read the line with WARN; often a full GPU or a broken one",
        check="gpu-health",
    ),
    KnownMessage(
        name="nccl-network",
        pattern=r"ncclSystemError|ncclRemoteError|unhandled system error",
        cause="NCCL could not reach a peer, or the peer ended",
        remedy="if no other rank failed, run with --debug-comm, and let the firewall pass all ports among the nodes",
        check="network",
    ),
    KnownMessage(
        name="rendezvous-timeout",
        pattern=r"RendezvousTimeoutError",
        cause="not all nodes came to the rendezvous in time",
        remedy="look which agent said nothing (`clusterddp logs`), and let the firewall pass clusterddp_ports",
        check="ports",
    ),
    KnownMessage(
        name="rendezvous-refused",
        pattern=r"RendezvousConnectionError|client socket has (timed out|failed)",
        cause="the rendezvous host could not be reached",
        remedy="let the firewall pass clusterddp_ports among the nodes, and see that clusterddp_address is right",
        check="ports",
    ),
    KnownMessage(
        name="workers-missing",
        pattern=r"\d{1,6}/\d{1,6} clients joined",
        cause="some ranks never called init_process_group",
        remedy="all must call it, with the same WORLD_SIZE; `clusterddp logs` shows who failed or was slow before",
    ),
    KnownMessage(
        name="no-route",
        pattern=r"No route to host|Network is unreachable|EHOSTUNREACH|ENETUNREACH",
        cause="the host has no way to that address",
        remedy="set clusterddp_address or clusterddp_interface to the network that all nodes share",
        check="network",
    ),
    KnownMessage(
        name="address-family",
        pattern=r"Address family not supported|EAFNOSUPPORT",
        cause="the host does not have that kind of address (IPv6, most often)",
        remedy="give clusterddp_address as an IPv4 address on every host, or switch IPv6 on everywhere",
        check="network",
    ),
    KnownMessage(
        name="name-unknown",
        pattern=r"Name or service not known|Temporary failure in name resolution|nodename nor servname",
        cause="a name cannot be looked up on the host",
        remedy="put it into /etc/hosts there, or use its address",
        check="names",
    ),
    # Programs that do not fit together
    KnownMessage(
        name="collective-mismatch",
        pattern=r"mismatch between collectives",
        cause="the ranks run different collectives",
        remedy="look for a branch that only some ranks take; `clusterddp why` names both lines while they hang",
    ),
    KnownMessage(
        name="models-differ",
        pattern=r"DDP expects same model across all ranks",
        cause="the ranks built different models",
        remedy="build it from the same configuration on every rank: no randomness, no per-host files in its shape",
    ),
    KnownMessage(
        name="unused-parameters",
        pattern=r"Expected to have finished reduction in the prior iteration",
        cause="some parameters got no gradient",
        remedy="give DistributedDataParallel find_unused_parameters=True, or use all of forward's outputs in the loss",
    ),
    KnownMessage(
        name="no-process-group",
        pattern=r"Default process group has not been initialized",
        cause="torch.distributed was used before init_process_group",
        remedy="call torch.distributed.init_process_group() first; torchrun has set what it needs",
    ),
    KnownMessage(
        name="environment-missing",
        pattern=r"environment variable \w+ expected, but not set",
        cause="the script was started without torchrun's variables",
        remedy="start it by `clusterddp run`, and do not clear RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT in it",
    ),
    KnownMessage(
        name="collective-timeout",
        pattern=r"Timed out waiting \d+ms for (recv|send)|wait timeout after \d+ms",
        cause="a collective did not end in time: a rank was late, hung, or sent another size",
        remedy="while it hangs, `clusterddp why` names the rank and its line",
    ),
    KnownMessage(
        name="threads-at-exit",
        pattern=r"terminate called without an active exception",
        cause="the program ended while threads of its process group, or of another library, lived",
        remedy="call destroy_process_group() last, in a function that holds no model any more",
    ),
    KnownMessage(
        name="peer-gone",
        pattern=r"(Connection|connection) (was )?(likely )?(closed|reset)( by (remote )?peer)?|Connection refused"
        r"|Broken pipe|Socket closed",
        cause="another rank went away",
        remedy="the fault is with the rank that ended first, here or on a host that was lost; this one only noticed",
        of_peer=True,
    ),
    # Software
    KnownMessage(
        name="library-version",
        pattern=r"version `\w+' not found|version `?GLIBC",
        cause="a library on the host is older than the one the code was built with",
        remedy="use one environment on all hosts, with a libstdc++ of its own (conda: libstdcxx-ng)",
        check="torch-equal",
    ),
    KnownMessage(
        name="undefined-symbol",
        pattern=r"undefined symbol",
        cause="an extension was built for another version of torch or Python",
        remedy="rebuild or reinstall it in the environment of clusterddp_python",
        check="torch-equal",
    ),
    KnownMessage(
        name="library-missing",
        pattern=r"cannot open shared object file",
        cause="a library is missing on the host, or not on its search path",
        remedy="load it in clusterddp_setup (`module load …`, `conda activate …`), which every process of the job gets",
        check="setup",
    ),
    KnownMessage(
        name="module-missing",
        pattern=r"ModuleNotFoundError|No module named(?! \S+\.__main__)",
        cause="that package is not in the environment of clusterddp_python",
        remedy="install it there on every host, or correct clusterddp_python or clusterddp_setup; if yours, sync it",
        check="packages",
    ),
    KnownMessage(
        name="weights-only",
        pattern=r"Weights only load failed",
        cause="the checkpoint holds more than tensors, which torch.load refuses by default",
        remedy="allow the class with torch.serialization.add_safe_globals, or weights_only=False for a file you trust",
    ),
    KnownMessage(
        name="checkpoint-torn",
        pattern=r"PytorchStreamReader failed|failed finding central directory|unexpected EOF, expected \d+ more bytes",
        cause="the checkpoint is not whole",
        remedy="load the one before; save to another name and rename when it is written, on one rank a file",
    ),
)
