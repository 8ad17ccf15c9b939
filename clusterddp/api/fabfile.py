"""The tasks of ``clusterddp.tasks`` for Fabric's own program, as a collection for a fabfile.

    from clusterddp.fabfile import namespace

    fab -H gpu00,gpu01 start train.py

``fab`` calls a task once per host. These tasks collect the hosts, and do their work once for all of them after the last
call, so that a run is one run. Variables of the hosts come from Fabric's configuration: ``clusterddp: {python: …}``.
"""

from __future__ import annotations

import functools
import json
import shlex
import sys
from typing import TYPE_CHECKING, Any

from fabric import Connection, task
from invoke.collection import Collection
from invoke.exceptions import Exit

from clusterddp.api import tasks
from clusterddp.errors import ClusterddpError
from clusterddp.remote.shared.text.counted import counted
from clusterddp.text.printable import one_line
from clusterddp.text.units import split_names

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    Hosts = Sequence[Connection]

namespace = Collection("clusterddp")
namespace.configure({"clusterddp": {}})


def _put(line: str) -> None:
    sys.stdout.write(f"{one_line(line)}\n")


def _once_for_all_hosts(body: Callable[..., int | None]) -> Callable[..., int | None]:
    """Make ``fab`` tasks of ``body``: one collects each host's connection, one then calls it once with all of them."""
    connections: list[Connection] = []
    task_arguments: dict[str, Any] = {}

    @task(name=f"{body.__name__}-on-all")  # type: ignore[untyped-decorator]
    def work(_context: object) -> None:
        hosts, arguments = list(connections), dict(task_arguments)
        connections.clear()
        try:
            code = body(hosts, **arguments)
        except ClusterddpError as error:
            raise Exit(f"clusterddp: {error}", error.exit_code) from error
        finally:
            for connection in hosts:
                connection.close()
        if code:
            raise Exit(code=code)

    @task(post=[work], name=body.__name__.rstrip("_"))  # type: ignore[untyped-decorator]
    @functools.wraps(body)
    def gather(context: object, **arguments: Any) -> None:
        if not isinstance(context, Connection):
            raise Exit("clusterddp: no host is given; write `fab -H gpu00,gpu01 …`", 2)
        connections.append(context)
        task_arguments.update(arguments)

    namespace.add_task(gather)
    return body


def _variables(hosts: Hosts) -> dict[str, Any]:
    """Return the hosts' inventory variables, which Fabric's configuration holds."""
    return dict(hosts[0].config.get("clusterddp") or {})


@_once_for_all_hosts
def facts(hosts: Hosts) -> None:
    """What the hosts are: cores, memory, GPUs, torch."""
    for name, host_facts in tasks.facts(hosts, **_variables(hosts)).items():
        torch = host_facts.torch.version if host_facts.torch else "-"
        cores, memory = counted(host_facts.cores, "core"), f"{(host_facts.memory_bytes or 0) >> 30} GiB"
        _put(f"{name}: {host_facts.hostname}, {cores}, {memory}, torch {torch}")


@_once_for_all_hosts
def doctor(hosts: Hosts, only: str = "", skip: str = "") -> int:
    """Whether a job would run on them; the findings that are not well."""
    diagnosis = tasks.doctor(hosts, only=split_names(only), skip=split_names(skip), **_variables(hosts))
    for result in diagnosis.results:
        if result.verdict not in ("pass", "skipped"):
            _put(
                f"{result.verdict}: {result.name}: {','.join(result.hosts)}: {result.message}"
                + (f"; {result.fix}" if result.fix else "")
            )
    return int(diagnosis.verdict == "fail")


@_once_for_all_hosts
def sync(hosts: Hosts) -> None:
    """Bring the project's code to them."""
    result = tasks.sync(hosts, **_variables(hosts))
    _put(f"code {result.digest[:12]} is on {counted(len(result.hosts), 'host')}")


@_once_for_all_hosts
def pull(hosts: Hosts, what: str = "", to: str = "") -> int:
    """Bring files of the hosts here; ``what``: a path below the workdir, or the id or name of a run for its files."""
    pulled = tasks.pull(hosts, what or None, to or None, **_variables(hosts))
    _put(f"{counted(pulled.files, 'file is', 'files are')} in {pulled.folder}")
    for error in pulled.errors:
        _put(str(error))
    return int(not pulled.whole)


@_once_for_all_hosts
def exec_(hosts: Hosts, command: str) -> int:
    """Run a command, a text for the shell, as a worker would."""
    ends = tasks.exec(hosts, shell=command, **_variables(hosts))
    for end in ends:
        for line in end.output.decode(errors="replace").splitlines():
            _put(f"[{end.host}] {line}")
        if end.error:
            _put(f"[{end.host}] {end.error.removeprefix(f'{end.host}: ')}")
    return max(end.code for end in ends)


@_once_for_all_hosts
def start(hosts: Hosts, script: str, args: str = "") -> None:
    """Start a script by torchrun, one run on all of them; prints the run's id."""
    _put(tasks.start(hosts, script, shlex.split(args), **_variables(hosts)))


@_once_for_all_hosts
def logs(hosts: Hosts, run: str = "", follow: bool = False) -> None:  # noqa: FBT001, FBT002 - a flag of the task
    """The lines of a run, labelled by rank."""
    for line in tasks.logs(hosts, run or None, follow=follow, **_variables(hosts)):
        whose = f"agent {line.host}" if line.rank is None else f"{line.rank} {line.host}:{line.local_rank}"
        _put(f"[{whose}] {line.text}")


@_once_for_all_hosts
def status(hosts: Hosts, run: str = "") -> None:
    """The status object of a run, as JSON."""
    sys.stdout.write(json.dumps(tasks.status(hosts, run or None, **_variables(hosts)), indent=1) + "\n")


@_once_for_all_hosts
def stop(hosts: Hosts, run: str) -> int:
    """End a run on its hosts, with each one's proof."""
    proofs = tasks.stop(hosts, run, **_variables(hosts))
    for proof in proofs:
        _put(proof.error or f"{proof.host}: {proof.summary}")
    return int(not all(proof.proved_empty for proof in proofs))
