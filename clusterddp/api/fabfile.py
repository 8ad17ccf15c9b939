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

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    Hosts = Sequence[Connection]

namespace = Collection("clusterddp")
namespace.configure({"clusterddp": {}})


def _put(line: str) -> None:
    sys.stdout.write(f"{one_line(line)}\n")


def _together(body: Callable[..., int | None]) -> Callable[..., int | None]:
    """Make a task of a function of several connections and its own arguments; it may return an exit code."""
    gathered: list[Connection] = []
    given: dict[str, Any] = {}

    @task(name=f"{body.__name__}-on-all")  # type: ignore[untyped-decorator]
    def work(_context: object) -> None:
        hosts, arguments = list(gathered), dict(given)
        gathered.clear()
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
        gathered.append(context)
        given.update(arguments)

    namespace.add_task(gather)
    return body


def _variables(hosts: Hosts) -> dict[str, Any]:
    return dict(hosts[0].config.get("clusterddp") or {})


@_together
def facts(hosts: Hosts) -> None:
    """What the hosts are: cores, memory, GPUs, torch."""
    for name, one in tasks.facts(hosts, **_variables(hosts)).items():
        torch = one.torch.version if one.torch else "-"
        _put(
            f"{name}: {one.hostname}, {counted(one.cores, 'core')}, {(one.memory_bytes or 0) >> 30} GiB, torch {torch}"
        )


@_together
def doctor(hosts: Hosts, only: str = "", skip: str = "") -> int:
    """Whether a job would run on them; the findings that are not well."""
    found = tasks.doctor(hosts, only=_words(only), skip=_words(skip), **_variables(hosts))
    for one in found.results:
        if one.verdict not in ("pass", "skipped"):
            _put(
                f"{one.verdict}: {one.name}: {','.join(one.hosts)}: {one.message}" + (f"; {one.fix}" if one.fix else "")
            )
    return int(found.verdict == "fail")


@_together
def sync(hosts: Hosts) -> None:
    """Bring the project's code to them."""
    found = tasks.sync(hosts, **_variables(hosts))
    _put(f"code {found.digest[:12]} is on {counted(len(found.hosts), 'host')}")


@_together
def pull(hosts: Hosts, what: str = "", to: str = "") -> int:
    """Bring files of the hosts here; ``what``: a path below the workdir, or the id or name of a run for its files."""
    found = tasks.pull(hosts, what or None, to or None, **_variables(hosts))
    _put(f"{counted(found.files, 'file is', 'files are')} in {found.folder}")
    for error in found.errors:
        _put(str(error))
    return int(not found.whole)


@_together
def exec_(hosts: Hosts, command: str) -> int:
    """Run a command, a text for the shell, as a worker would."""
    ends = tasks.exec(hosts, shell=command, **_variables(hosts))
    for end in ends:
        for line in end.output.decode(errors="replace").splitlines():
            _put(f"[{end.host}] {line}")
        if end.error:
            _put(f"[{end.host}] {end.error.removeprefix(f'{end.host}: ')}")
    return max(end.code for end in ends)


@_together
def start(hosts: Hosts, script: str, args: str = "") -> None:
    """Start a script by torchrun, one run on all of them; prints the run's id."""
    _put(tasks.start(hosts, script, shlex.split(args), **_variables(hosts)))


@_together
def logs(hosts: Hosts, run: str = "", follow: bool = False) -> None:  # noqa: FBT001, FBT002 - a flag of the task
    """The lines of a run, labelled by rank."""
    for line in tasks.logs(hosts, run or None, follow=follow, **_variables(hosts)):
        whose = f"agent {line.host}" if line.rank is None else f"{line.rank} {line.host}:{line.local_rank}"
        _put(f"[{whose}] {line.text}")


@_together
def status(hosts: Hosts, run: str = "") -> None:
    """The status object of a run, as JSON."""
    sys.stdout.write(json.dumps(tasks.status(hosts, run or None, **_variables(hosts)), indent=1) + "\n")


@_together
def stop(hosts: Hosts, run: str) -> int:
    """End a run on its hosts, with each one's proof."""
    proofs = tasks.stop(hosts, run, **_variables(hosts))
    for proof in proofs:
        _put(proof.error or f"{proof.host}: {proof.summary}")
    return int(not all(proof.proved_empty for proof in proofs))


def _words(text: str) -> tuple[str, ...]:
    return tuple(filter(None, text.split(",")))
