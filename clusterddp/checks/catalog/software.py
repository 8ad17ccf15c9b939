"""Checks of setup lines, Python and torch, and whether all hosts have the same."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING, Any

from clusterddp.checks.model import Check, Finding, Need, fail, for_facts, internal_error, odd_ones, unknown, warn
from clusterddp.checks.needs import ASKED, FACTS, HEALTH
from clusterddp.facts.read_facts import read_answer
from clusterddp.remote.shared.environment.environment_records import EnvironmentProof, ProofRequest
from clusterddp.remote.shared.schema.record import written

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from clusterddp.checks.evidence import Evidence, Seen
    from clusterddp.checks.model import Culprits, Verdict
    from clusterddp.facts.host import Facts
    from clusterddp.inventory import HostEntry

CATEGORY = "Python and torch"
_SLOW = "try again when the host is less busy; see what it waits for (`top`), or whether its disk hangs"
STEERING = ("NCCL_", "GLOO_", "TP_")


def _setup(evidence: Evidence) -> Iterable[Finding]:
    for seen in evidence.hosts:
        if seen.facts_error:
            finding = unknown if seen.facts_error == internal_error("facts") else fail
            yield finding(seen.name, seen.facts_error)


def _stale(entry: HostEntry, facts: Facts) -> Finding | None:
    stale = [name for name in facts.environment if not name.startswith(STEERING) and name not in entry.env]
    if not stale:
        return None
    return warn(entry.name, f"the login or clusterddp_setup sets {', '.join(stale[:6])}")


def _is_meant(entry: HostEntry) -> bool:
    """Whether the inventory determines a job's interpreter."""
    return bool(entry.python or entry.setup or entry.environment)


def _login(evidence: Evidence) -> Iterable[Finding]:
    for seen in evidence.hosts:
        health = HEALTH.of(seen)
        facts, login = seen.facts, health and health.login
        if not facts or not login or _is_meant(seen.entry):
            continue  # a difference that the inventory asks for is intended
        if login.error:
            yield unknown(seen.name, f"could not look: {login.error}")
        elif not login.same and facts.python:
            found = login.python or "no Python"
            yield warn(seen.name, f"a login finds {found}, a job {facts.python}")


def _python(entry: HostEntry, facts: Facts) -> Finding | None:
    return None if facts.python else fail(entry.name, facts.python_error or "no Python")


def _torch(entry: HostEntry, facts: Facts) -> Finding | None:
    if facts.torch is None:
        return fail(entry.name, "no interpreter, no torch", final=True)
    if facts.torch.import_unfinished:
        return fail(entry.name, f"{facts.python}: {facts.torch.import_error}", fix=_SLOW)
    if facts.torch.import_error:
        lock = (entry.environment or "").partition("[")[0]
        helps = f"add torch to what {lock} locks, and lock it again" if lock else ""
        message = f"{facts.python} has no working torch: {facts.torch.import_error}"
        return fail(entry.name, message, fix=helps, final=True)
    return None


def _backends(entry: HostEntry, facts: Facts) -> Finding | None:
    torch = facts.torch
    if torch is None:
        return None
    if facts.pci_nvidia and torch.cuda and not torch.nccl_available:
        return fail(entry.name, f"torch {torch.version} has no NCCL", symptom="Distributed package doesn't have NCCL")
    if not torch.gloo:
        return warn(entry.name, f"torch {torch.version} has no gloo", symptom="Distributed package doesn't have Gloo")
    return None


def equal(what: str, value: Callable[[Facts], str | None], verdict: Verdict) -> Callable[[Evidence], Iterable[Finding]]:
    """A check that a value is the same on all hosts; it names the hosts that differ from the majority."""

    def judge(evidence: Evidence) -> Iterable[Finding]:
        by_host = {entry.name: found for entry, facts in evidence.facts if (found := value(facts)) is not None}
        usual, odd = odd_ones(by_host)
        for host, found in odd.items():
            other = next(name for name, theirs in by_host.items() if theirs == usual)
            yield Finding(
                verdict=verdict, hosts=(host,), message=f"{what} {found or 'none'}, {usual or 'none'} on {other}"
            )

    return judge


def _torch_build(facts: Facts) -> str | None:
    return facts.torch.version if facts.torch else None


def _nccl(facts: Facts) -> str | None:
    return (facts.torch.nccl_loaded or facts.torch.nccl) if facts.torch else None


def _read_proof(host: str, data: Any) -> EnvironmentProof:
    return read_answer(EnvironmentProof, host, data)


def _not_locked(_: Evidence, seen: Seen, __: Culprits) -> Finding | None:
    there = not seen.entry.environment or LOCKED.of(seen) is not None
    return None if there else LOCKED.unanswered(seen)


LOCKED: Need[EnvironmentProof] = Need(
    name="locked",
    operation="environment_proof",
    arguments=lambda asked: written(ProofRequest(python=asked.entry.python or "")),
    read=_read_proof,
    known=lambda asked: None if asked.entry.environment else EnvironmentProof(path="", there=False, built="", now=""),
    without_facts=True,
    lack=_not_locked,
)


def _locked(evidence: Evidence) -> Iterable[Finding]:
    """Fail hosts whose environment is missing, was changed since its build, or differs from others of the same lock."""
    answers = [(entry, one) for entry, one in LOCKED.each(evidence) if entry.environment]
    by_place: dict[str, dict[str, str]] = {}
    for entry, one in answers:
        if not one.there:
            yield fail(
                entry.name, f"the environment of {entry.environment} is not built", fix="`clusterddp up` builds it"
            )
        elif one.now != one.built:
            what = f"packages were changed in the environment of {entry.environment} since it was built"
            yield fail(entry.name, what, fix=_anew(one.path))
        else:
            by_place.setdefault(one.path.rpartition("/")[2], {})[entry.name] = one.now
    for digests in by_place.values():
        _, odd = odd_ones(digests)
        for host in odd:
            path = next(one.path for entry, one in answers if entry.name == host)
            yield fail(host, "its environment is not what the others have of the same lock", fix=_anew(path))


def _anew(path: str) -> str:
    return f"`rm -r {shlex.quote(path)}` on the host, then `clusterddp up` builds it anew"


LOCKED_ENVIRONMENT = Check(
    name="locked-environment",
    category=CATEGORY,
    title="the environment of clusterddp_environment is built, unchanged and the same everywhere",
    judge=_locked,
    needs=(LOCKED,),
    after=("connection", "host-keys", "helper", "setup"),
    symptom="ModuleNotFoundError, or models and data that differ between the ranks",
)


CHECKS = (
    Check(
        name="setup",
        category=CATEGORY,
        title="the setup lines run, and the host tells its facts",
        judge=_setup,
        needs=(ASKED,),
        after=("connection", "host-keys", "helper"),
        symptom="cannot open shared object file, or a python without the job's packages",
        fix="run the lines of clusterddp_setup in `bash -l` on the host",
    ),
    Check(
        name="login-environment",
        category=CATEGORY,
        title="no variable of another launcher is set",
        judge=for_facts(_stale),
        needs=(FACTS,),
        symptom="a script started by hand takes another job's MASTER_ADDR, RANK or PET_* and waits for peers",
        fix="remove them from the login's rc files and clusterddp_setup; `run` itself drops them",
    ),
    LOCKED_ENVIRONMENT,
    Check(
        name="python",
        category=CATEGORY,
        title="there is an interpreter to train with",
        judge=for_facts(_python),
        needs=(FACTS,),
        after=("locked-environment",),
        symptom="command not found, exit code 127",
        fix="set clusterddp_python to the interpreter that has torch, or bring it by clusterddp_setup",
    ),
    Check(
        name="login-python",
        category=CATEGORY,
        title="a job's Python is what a login finds, or what the inventory says",
        judge=_login,
        needs=(FACTS, HEALTH),
        after=("python",),
        symptom="ModuleNotFoundError in a job for what can be imported by hand",
        fix="set clusterddp_python to the one that is meant; profiles are not read for commands over SSH",
    ),
    Check(
        name="python-equal",
        category=CATEGORY,
        title="one version of Python",
        judge=equal("Python", lambda facts: facts.python_version, "warn"),
        needs=(FACTS,),
        after=("python",),
        symptom="pickles and imports that work on one host and fail on another",
        fix="use the same environment on all hosts",
    ),
    Check(
        name="torch",
        category=CATEGORY,
        title="torch can be imported",
        judge=for_facts(_torch),
        needs=(FACTS,),
        after=("python",),
        symptom="ModuleNotFoundError: No module named 'torch'",
        fix="install torch there, or set clusterddp_python to the interpreter that has it",
    ),
    Check(
        name="torch-equal",
        category=CATEGORY,
        title="one version and build of torch",
        judge=equal("torch", _torch_build, "fail"),
        needs=(FACTS,),
        after=("python", "torch"),
        symptom="collectives that hang or fail in odd ways, undefined symbol",
        fix="install the same torch, CUDA build included, on all hosts",
    ),
    Check(
        name="nccl-equal",
        category=CATEGORY,
        title="one version of NCCL",
        judge=equal("NCCL", _nccl, "fail"),
        needs=(FACTS,),
        after=("python", "torch", "torch-equal"),
        symptom="Mismatched NCCL version detected, or family N is neither AF_INET nor AF_INET6",
        fix="use the NCCL that comes with torch: clear LD_LIBRARY_PATH and LD_PRELOAD of another one",
    ),
    Check(
        name="backends",
        category=CATEGORY,
        title="torch has the backends that its hosts need",
        judge=for_facts(_backends),
        needs=(FACTS,),
        after=("python", "torch"),
        fix="install a build of torch that has them",
    ),
)
