"""Installs the same Python environment on every host: sends the wheels a host lacks, builds it, proves it equal."""

from __future__ import annotations

import hashlib
from collections import Counter
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, TypeVar

from clusterddp.environments.lock_file import LockFile, find_lock_file
from clusterddp.environments.platform_tags import HostKind, kind_of
from clusterddp.environments.sending import send_wheels
from clusterddp.environments.wheels import UV_WHEELS, Wheel, drop_damaged, uv_wheel, wheels_of
from clusterddp.errors import HelperError, LockError, PlanError, one_error
from clusterddp.hosts.ask import ask, reading_answer
from clusterddp.hosts.fanout import each, values
from clusterddp.remote.shared.environment.environment_records import (
    BaseInterpreter,
    BaseRequest,
    BuildAnswer,
    BuildRequest,
    LacksRequest,
)
from clusterddp.remote.shared.schema.fields import Fields
from clusterddp.remote.shared.schema.record import to_fields
from clusterddp.remote.shared.text.counted import counted
from clusterddp.sync.transfer.progress_rate import Transfer
from clusterddp.sync.transfer.transfer_task import TransferOptions
from clusterddp.text.folding import folded_names

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from clusterddp.hosts.client import Host
    from clusterddp.project.project import Project
    from clusterddp.remote.shared.run.node_env import Node

T = TypeVar("T")
SOURCE = "src"
SHOWN_DIGITS = 4  # of an environment's digest in messages
_BASE_TIMEOUT = 180.0  # seconds; the setup lines run first
_BUILD_TIMEOUT = 3700.0  # seconds
_SPACE_FACTOR = 5  # disk space of an environment and its build, in multiples of its wheels' size


@dataclass(frozen=True, kw_only=True, slots=True)
class Installed:
    """An environment as it should be on one host."""

    host: str
    ident: str  # a digest of its wheels and its interpreter's version
    lock: str  # the lock file as the inventory names it
    path: str
    left: tuple[str, ...] = ()  # variables of another environment that the setup lines set; they are dropped
    digest: str = ""  # a digest of what is installed; empty if it is not built yet
    names: frozenset[str] = frozenset()  # its packages


def make_plans(hosts: Sequence[Host], project: Project, progress: Callable[[str], None]) -> list[_Plan]:
    """Return the environment for each host with ``clusterddp_environment``, in order; nothing is changed on hosts."""
    chosen = [host for host in hosts if host.entry.environment]
    locks = {host.name: find_lock_file(host.entry.environment or "", project.root) for host in chosen}
    bases = dict(zip(locks, values(each(chosen, _base_interpreter)), strict=True))
    wheels_by_kind: dict[tuple[LockFile, HostKind], tuple[Wheel, ...]] = {}
    plans = []
    for host in chosen:
        lock, base = locks[host.name], bases[host.name]
        kind = kind_of(base)
        if (lock, kind) not in wheels_by_kind:
            wheels_by_kind[lock, kind] = wheels_of(lock, kind, progress)
        wheels = wheels_by_kind[lock, kind]
        plans.append(_Plan(host=host, lock=lock, base=base, kind=kind, wheels=wheels, project=project.id))
    return plans


def ensure(
    hosts: Sequence[Host],
    project: Project,
    notify: Callable[[str], None],
    progress: Callable[[str], None],
    *,
    build: bool = True,
    spread: str = "auto",
) -> list[Installed]:
    """Build the environment on every host with ``clusterddp_environment``, and use its interpreter from now on.

    ``spread`` says whether hosts pass wheels on to each other: ``auto``, ``on``, ``off``. Raises ``LockError`` if a
    lock file cannot be resolved to wheels, ``PlanError`` if a host lacks its environment and ``build`` is off,
    ``HostError`` or ``HostsError`` if hosts cannot build it, or have something else installed.
    """
    plans = make_plans(hosts, project, progress)
    if not plans:
        return []
    lacking = [plan for plan in plans if not plan.digest]
    if lacking and not build:
        names = folded_names([plan.host.name for plan in lacking])
        first = lacking[0]
        message = f"{names}: environment {first.ident[:SHOWN_DIGITS]} of {first.lock.written} is not there yet"
        raise PlanError(message, remedy="`clusterddp up` builds it")
    notify(summary(plans))
    if lacking and source_of(project):
        notify(f"the project itself is not installed: {SOURCE}/ is on PYTHONPATH")
    if lacking:
        _send_wheels(lacking, project, notify, progress, spread)
        progress(f"building the environment on {counted(len(lacking), 'host')}")
        _for_each_plan(lacking, _build)
    environments = [plan.installed for plan in plans]
    refuse_unequal(environments)
    for notice in _dropped_notices(environments):
        notify(notice)
    for plan in plans:
        _use(plan)
    return environments


def adopt(hosts: Sequence[Host], project: Project, progress: Callable[[str], None]) -> None:
    """Use the environments' interpreters on all hosts that should have one, built or not; nothing is built."""
    for plan in make_plans(hosts, project, progress):
        _use(plan)


def source_of(project: Project) -> str:
    """The folder of the project that contains its packages (``src``); empty if they are at its top."""
    source = project.root / SOURCE
    packages = any(source.glob("*/__init__.py")) or any(source.glob("*.py"))
    return SOURCE if packages else ""


def with_source(node: Node, host: Host, project: Project) -> Node:
    """The node with a PYTHONPATH to the project's packages, if workers need it and the user has not set one."""
    source = source_of(project)
    if not host.entry.environment or not source or node.env.get("PYTHONPATH"):
        return node
    return node._replace(env={**node.env, "PYTHONPATH": f"{node.workdir}/{source}"})


def digest_of(environments: Sequence[Installed]) -> str | None:
    """One digest of the environments of all hosts; None if there are none."""
    idents = sorted({environment.ident for environment in environments})
    if len(idents) > 1:
        return hashlib.sha256("\n".join(idents).encode()).hexdigest()
    return idents[0] if idents else None


@dataclass(kw_only=True, slots=True)
class _Plan:
    """The environment that one host should have."""

    host: Host
    lock: LockFile
    base: BaseInterpreter
    kind: HostKind  # what determines which wheels fit
    wheels: tuple[Wheel, ...]
    project: str  # its id
    digest: str = ""  # as in Installed

    def __post_init__(self) -> None:
        self.digest = self.base.ready.get(self.ident, "")

    @property
    def ident(self) -> str:
        """A digest of the wheels and of the interpreter's version."""
        version = ".".join(self.kind.python.split(".")[:2])
        lines = [f"{version}{self.kind.threads}", *sorted(wheel.sha256 for wheel in self.wheels)]
        return hashlib.sha256("\n".join(lines).encode()).hexdigest()

    @property
    def installed(self) -> Installed:
        """The environment as it is now; ``digest`` is empty until it is built."""
        return Installed(
            host=self.host.name,
            ident=self.ident,
            lock=self.lock.written,
            path=f"{self.host.hello.state}/environments/{self.ident}",
            left=self.base.left,
            digest=self.digest,
            names=frozenset(wheel.name for wheel in self.wheels),
        )


def _base_interpreter(host: Host) -> BaseInterpreter:
    """Ask a host for the interpreter that environments are built with, and which environments it has."""
    entry = host.entry
    request = BaseRequest(setup=entry.setup, python=entry.python, workdir=entry.workdir)
    return ask(host, "environment_base", request, BaseInterpreter, timeout=_BASE_TIMEOUT)


def summary(plans: Sequence[_Plan]) -> str:
    """A notice such as ``environment 4be1 (ready on 16, building on 2)``; if there are several environments, each."""
    parts = []
    for ident in dict.fromkeys(plan.ident for plan in plans):
        count = Counter(bool(plan.digest) for plan in plans if plan.ident == ident)
        states = [f"{what} on {count[yes]}" for yes, what in ((True, "ready"), (False, "building")) if count[yes]]
        parts.append(f"{ident[:SHOWN_DIGITS]} ({', '.join(states)})")
    return f"environment {', '.join(parts)}"


def _send_wheels(
    plans: Sequence[_Plan], project: Project, notify: Callable[[str], None], progress: Callable[[str], None], mode: str
) -> None:
    """Send every host the wheels that it lacks, including that of uv."""
    uv = {plan.host.name: uv_wheel(plan.lock, plan.kind, progress) for plan in plans}
    answers = _for_each_plan(plans, lambda plan: _lacking_wheels(plan, uv[plan.host.name]))
    lacks = dict(zip((plan.host.name for plan in plans), answers, strict=True))
    to_send = {wheel for plan in plans for wheel in (*plan.wheels, uv[plan.host.name])}
    to_send = {wheel for wheel in to_send if any(wheel.sha256 in lacking for lacking in answers)}
    if drop_damaged(to_send):
        _fetch_again(plans, to_send, progress)
    kinds: dict[frozenset[Wheel], list[_Plan]] = {}
    for plan in plans:
        if lacks[plan.host.name]:
            kinds.setdefault(frozenset((*plan.wheels, uv[plan.host.name])), []).append(plan)
    transfer = Transfer("sending wheels", progress)
    for wheels, same_wheels in kinds.items():
        lacking = set[str]().union(*(lacks[plan.host.name] for plan in same_wheels))
        send_wheels(
            [plan.host for plan in same_wheels],
            [wheel for wheel in wheels if wheel.sha256 in lacking],
            project.workdir,
            transfer,
            TransferOptions(mode=mode, notify=notify),
        )


def _fetch_again(plans: Sequence[_Plan], to_send: Iterable[Wheel], progress: Callable[[str], None]) -> None:
    """Download wheels that were dropped as damaged; ``LockError`` if an index has another file by that name now."""
    for plan in plans:
        wheels_of(plan.lock, plan.kind, progress)
        uv_wheel(plan.lock, plan.kind, progress)
    for wheel in to_send:
        if not wheel.path.is_file():
            message = f"{wheel.file} was damaged in the cache, and its index has another one now"
            raise LockError(plans[0].lock.written, message, remedy="run again: all is resolved anew")


def _for_each_plan(plans: Sequence[_Plan], work: Callable[[_Plan], T]) -> list[T]:
    """Work on all plans' hosts at once; return the results in the plans' order.

    Raises the host's error; HostsError if several failed.
    """
    by_host = {plan.host: plan for plan in plans}
    return values(each(list(by_host), lambda host: work(by_host[host])))


def _lacking_wheels(plan: _Plan, uv: Wheel) -> frozenset[str]:
    """The digests of the wheels that a host lacks."""
    wheels = {wheel.sha256: wheel.size for wheel in (*plan.wheels, uv)}
    request = LacksRequest(wheels=wheels, room=_SPACE_FACTOR * sum(wheels.values()))
    answer = plan.host.call("environment_lacks", to_fields(request))
    with reading_answer(plan.host.name):
        return frozenset(Fields({"lacks": answer}).texts("lacks")) & wheels.keys()


def _build(plan: _Plan) -> None:
    """Build the environment on a host, or wait for another process that is building it."""
    lines = [f"{wheel.name}=={wheel.version} --hash=sha256:{wheel.sha256}" for wheel in plan.wheels]
    request = BuildRequest(
        ident=plan.ident,
        lock=plan.lock.written,
        project=plan.project,
        python=plan.base.python,
        setup=plan.host.entry.setup,
        wheels={wheel.file: wheel.sha256 for wheel in plan.wheels},
        requirements="\n".join(lines) + "\n",
        uv=UV_WHEELS[plan.kind.machine][1],
    )
    plan.digest = ask(plan.host, "environment_build", request, BuildAnswer, timeout=_BUILD_TIMEOUT).digest


def refuse_unequal(environments: Sequence[Installed]) -> None:
    """Refuse hosts with something else installed than most hosts have in the same environment; the errors name each."""
    errors = []
    for ident in dict.fromkeys(item.ident for item in environments):
        built = [item for item in environments if item.ident == ident and item.digest]
        usual = Counter(item.digest for item in built).most_common(1)
        for item in built:
            if item.digest != usual[0][0]:
                message = f"environment {ident[:SHOWN_DIGITS]} is not what it is on the other hosts"
                errors.append(HelperError(item.host, message, remedy=f"remove {item.path} there: it is built anew"))
    if errors:
        raise one_error(errors)


def _dropped_notices(environments: Sequence[Installed]) -> Iterator[str]:
    """Yield messages about variables of other environments that are dropped."""
    hosts: dict[str, list[str]] = {}
    for environment in environments:
        for name in environment.left:
            hosts.setdefault(name, []).append(environment.host)
    for name, names in hosts.items():
        yield f"{folded_names(names)}: {name} of clusterddp_setup is dropped: the environment is the lock's"


def _use(plan: _Plan) -> None:
    """Use the environment's interpreter on this host from now on."""
    entry, installed = plan.host.entry, plan.installed
    env = {"VIRTUAL_ENV": installed.path}
    if "PYTHONPATH" in installed.left and "PYTHONPATH" not in entry.env:
        env["PYTHONPATH"] = ""
    plan.host.entry = replace(entry, python=f"{installed.path}/bin/python", env={**env, **entry.env})
