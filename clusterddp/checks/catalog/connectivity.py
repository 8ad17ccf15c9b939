"""Checks of SSH access: connections, host keys, our helper's start, what the login shell prints."""

from __future__ import annotations

from typing import TYPE_CHECKING

from clusterddp.checks.model import Check, Finding, warn
from clusterddp.errors import HelperError, HostKeyError, NoPythonError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from clusterddp.checks.evidence import Evidence
    from clusterddp.errors import ClusterddpError

CATEGORY = "SSH"
# A disk that refuses our helper's files will refuse the job's files with the same message.
_REFUSALS = ("No space left on device", "Disk quota exceeded", "Read-only file system", "Permission denied")


def _for_errors(kind: Callable[[ClusterddpError], bool]) -> Callable[[Evidence], Iterable[Finding]]:
    """A check that fails the hosts which were not reached because of an error of this kind."""

    def judge(evidence: Evidence) -> Iterable[Finding]:
        for report in evidence.hosts:
            if report.error and kind(report.error):
                message = report.error.message.removeprefix(f"{report.name}: ")
                symptom = next((text for text in _REFUSALS if text in message), "")
                yield Finding(
                    verdict="fail",
                    hosts=(report.name,),
                    message=message,
                    symptom=symptom,
                    fix=report.error.remedy,
                    by_hand=not isinstance(report.error, NoPythonError),
                )

    return judge


def _login_noise(evidence: Evidence) -> Iterable[Finding]:
    for report in evidence.hosts:
        if report.noise.strip():
            line = report.noise.strip().splitlines()[0][:80]
            yield warn(report.name, f"the login shell prints {line!r} without a terminal")


CHECKS = (
    Check(
        name="connection",
        category=CATEGORY,
        title="every host is reached by SSH",
        judge=_for_errors(lambda error: not isinstance(error, (HostKeyError, HelperError))),
        symptom="the job never starts: the other hosts wait for this one in the rendezvous, 600 s by default",
        fix="try `ssh HOST true`; --limit leaves a host out; where the account is missing, users.yml makes it",
    ),
    Check(
        name="host-keys",
        category=CATEGORY,
        title="every host has the key that is known",
        judge=_for_errors(lambda error: isinstance(error, HostKeyError)),
        after=("connection",),
        symptom="Host key verification failed",
        fix="`clusterddp up` shows unknown keys; one that has changed must be explained by whoever runs the host",
    ),
    Check(
        name="helper",
        category=CATEGORY,
        title="our helper starts on every host",
        judge=_for_errors(lambda error: isinstance(error, HelperError)),
        after=("connection", "host-keys"),
        symptom="python3: command not found",
        fix="see what stops it: `ssh HOST python3 --version`; ansible_python_interpreter names another Python",
        playbook="python.yml",
    ),
    Check(
        name="login-noise",
        category=CATEGORY,
        title="login shells print nothing",
        judge=_login_noise,
        after=("connection", "host-keys", "helper"),
        symptom="rsync, scp: protocol version mismatch, is your shell clean? (clusterddp itself reads past it)",
        fix="let the shell's rc file print only where there is a terminal: [ -t 1 ] && …",
    ),
)
