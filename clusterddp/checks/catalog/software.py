"""Checks of setup lines, Python and torch, and whether all hosts have the same."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING, Any

from clusterddp.checks.model import Check, Finding, Need, fail, for_facts, internal_error, odd_ones, unknown, warn
from clusterddp.checks.needs import ASKED, FACTS, HEALTH
from clusterddp.facts.read_facts import read_answer
from clusterddp.remote.shared.environment.environment_records import EnvironmentProof, ProofRequest
from clusterddp.remote.shared.schema.record import to_fields

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from clusterddp.checks.evidence import Evidence, HostEvidence
    from clusterddp.checks.model import Culprits, Verdict
    from clusterddp.facts.host import Facts
    from clusterddp.inventory import HostEntry

CATEGORY = "Python and torch"
_FIX_SLOW = "try again when the host is less busy; see what it waits for (`top`), or whether its disk hangs"
STEERING_PREFIXES = ("NCCL_", "GLOO_", "TP_")
# Our own that commands read, as CLUSTERDDP_INVENTORY, steer no job; those of a job begin with the second.
_OURS, _OF_A_JOB = "CLUSTERDDP_", "CLUSTERDDP_RUN_"


def _setup(evidence: Evidence) -> Iterable[Finding]:
    for report in evidence.hosts:
        if report.facts_error:
            finding = unknown if report.facts_error == internal_error("facts") else fail
            yield finding(report.name, report.facts_error)


def _foreign_variables(entry: HostEntry, facts: Facts) -> Finding | None:
    found = [name for name in facts.environment if not name.startswith(STEERING_PREFIXES) and name not in entry.env]
    stale = [name for name in found if not name.startswith(_OURS) or name.startswith(_OF_A_JOB)]
    if not stale:
        return None
    return warn(entry.name, f"the login or clusterddp_setup sets {', '.join(stale[:6])}")


def _chooses_python(entry: HostEntry) -> bool:
    """Whether the inventory determines a job's interpreter."""
    return bool(entry.python or entry.setup or entry.environment)


def _login_python(evidence: Evidence) -> Iterable[Finding]:
    for report in evidence.hosts:
        health = HEALTH.of(report)
        facts, login = report.facts, health and health.login
        if not facts or not login or _chooses_python(report.entry):
            continue  # a difference that the inventory asks for is intended
        if login.error:
            yield unknown(report.name, f"could not look: {login.error}")
        elif not login.same and facts.python:
            found = login.python or "no Python"
            yield warn(report.name, f"a login finds {found}, a job {facts.python}")


def _missing_python(entry: HostEntry, facts: Facts) -> Finding | None:
    return None if facts.python else fail(entry.name, facts.python_error or "no Python")


def _missing_torch(entry: HostEntry, facts: Facts) -> Finding | None:
    if facts.torch is None:
        return fail(entry.name, "no interpreter, no torch", final=True)
    if facts.torch.import_unfinished:
        return fail(entry.name, f"{facts.python}: {facts.torch.import_error}", fix=_FIX_SLOW)
    if facts.torch.import_error:
        lock = (entry.environment or "").partition("[")[0]
        helps = f"add torch to what {lock} locks, and lock it again" if lock else ""
        message = f"{facts.python} has no working torch: {facts.torch.import_error}"
        return fail(entry.name, message, fix=helps, final=True)
    return None


def _missing_backends(entry: HostEntry, facts: Facts) -> Finding | None:
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
        by_host = {entry.name: own_value for entry, facts in evidence.facts if (own_value := value(facts)) is not None}
        usual, odd = odd_ones(by_host)
        for host, own_value in odd.items():
            other = next(name for name, other_value in by_host.items() if other_value == usual)
            yield Finding(
                verdict=verdict, hosts=(host,), message=f"{what} {own_value or 'none'}, {usual or 'none'} on {other}"
            )

    return judge


def _torch_version(facts: Facts) -> str | None:
    return facts.torch.version if facts.torch else None


def _nccl_version(facts: Facts) -> str | None:
    return (facts.torch.nccl_loaded or facts.torch.nccl) if facts.torch else None


def _read_proof(host: str, data: Any) -> EnvironmentProof:
    return read_answer(EnvironmentProof, host, data)


def _proof_missing(_: Evidence, report: HostEvidence, __: Culprits) -> Finding | None:
    known = not report.entry.environment or LOCKED.of(report) is not None
    return None if known else LOCKED.unanswered(report)


LOCKED: Need[EnvironmentProof] = Need(
    name="locked",
    operation="environment_proof",
    arguments=lambda asked: to_fields(ProofRequest(python=asked.entry.python or "")),
    read=_read_proof,
    known=lambda asked: None if asked.entry.environment else EnvironmentProof(path="", there=False, built="", now=""),
    without_facts=True,
    explain=_proof_missing,
)


def _locked_environments(evidence: Evidence) -> Iterable[Finding]:
    """Fail hosts whose environment is missing, was changed since its build, or differs from others of the same lock."""
    answers = [(entry, proof) for entry, proof in LOCKED.each(evidence) if entry.environment]
    digests_by_environment: dict[str, dict[str, str]] = {}
    for entry, proof in answers:
        if not proof.there:
            yield fail(
                entry.name, f"the environment of {entry.environment} is not built", fix="`clusterddp up` builds it"
            )
        elif proof.now != proof.built:
            message = f"packages were changed in the environment of {entry.environment} since it was built"
            yield fail(entry.name, message, fix=_rebuild_command(proof.path))
        else:
            digests_by_environment.setdefault(proof.path.rpartition("/")[2], {})[entry.name] = proof.now
    for digests in digests_by_environment.values():
        _, odd = odd_ones(digests)
        for host in odd:
            path = next(proof.path for entry, proof in answers if entry.name == host)
            yield fail(host, "its environment is not what the others have of the same lock", fix=_rebuild_command(path))


def _rebuild_command(path: str) -> str:
    return f"`rm -r {shlex.quote(path)}` on the host, then `clusterddp up` builds it anew"


LOCKED_ENVIRONMENT = Check(
    name="locked-environment",
    category=CATEGORY,
    title="the environment of clusterddp_environment is built, unchanged and the same everywhere",
    judge=_locked_environments,
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
        judge=for_facts(_foreign_variables),
        needs=(FACTS,),
        symptom="a script started by hand takes another job's MASTER_ADDR, RANK or PET_* and waits for peers",
        fix="remove them from the login's rc files and clusterddp_setup; `run` itself drops them",
    ),
    LOCKED_ENVIRONMENT,
    Check(
        name="python",
        category=CATEGORY,
        title="there is an interpreter to train with",
        judge=for_facts(_missing_python),
        needs=(FACTS,),
        after=("locked-environment",),
        symptom="command not found, exit code 127",
        fix="set clusterddp_python to the interpreter that has torch, or bring it by clusterddp_setup",
    ),
    Check(
        name="login-python",
        category=CATEGORY,
        title="a job's Python is what a login finds, or what the inventory says",
        judge=_login_python,
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
        judge=for_facts(_missing_torch),
        needs=(FACTS,),
        after=("python",),
        symptom="ModuleNotFoundError: No module named 'torch'",
        fix="install torch there, or set clusterddp_python to the interpreter that has it",
    ),
    Check(
        name="torch-equal",
        category=CATEGORY,
        title="one version and build of torch",
        judge=equal("torch", _torch_version, "fail"),
        needs=(FACTS,),
        after=("python", "torch"),
        symptom="collectives that hang or fail in odd ways, undefined symbol",
        fix="install the same torch, CUDA build included, on all hosts",
    ),
    Check(
        name="nccl-equal",
        category=CATEGORY,
        title="one version of NCCL",
        judge=equal("NCCL", _nccl_version, "fail"),
        needs=(FACTS,),
        after=("python", "torch", "torch-equal"),
        symptom="Mismatched NCCL version detected, or family N is neither AF_INET nor AF_INET6",
        fix="use the NCCL that comes with torch: clear LD_LIBRARY_PATH and LD_PRELOAD of another one",
    ),
    Check(
        name="backends",
        category=CATEGORY,
        title="torch has the backends that its hosts need",
        judge=for_facts(_missing_backends),
        needs=(FACTS,),
        after=("python", "torch"),
        fix="install a build of torch that has them",
    ),
)
