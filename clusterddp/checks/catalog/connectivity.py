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


def _failed(kind: Callable[[ClusterddpError], bool]) -> Callable[[Evidence], Iterable[Finding]]:
    def judge(evidence: Evidence) -> Iterable[Finding]:
        for seen in evidence.hosts:
            if seen.error and kind(seen.error):
                message = seen.error.message.removeprefix(f"{seen.name}: ")
                symptom = next((text for text in _REFUSALS if text in message), "")
                yield Finding(
                    verdict="fail",
                    hosts=(seen.name,),
                    message=message,
                    symptom=symptom,
                    fix=seen.error.remedy,
                    by_hand=not isinstance(seen.error, NoPythonError),
                )

    return judge


def _is_key(error: ClusterddpError) -> bool:
    return isinstance(error, HostKeyError)


def _is_helper(error: ClusterddpError) -> bool:
    return isinstance(error, HelperError)


def _is_connection(error: ClusterddpError) -> bool:
    return not _is_key(error) and not _is_helper(error)


def _noise(evidence: Evidence) -> Iterable[Finding]:
    for seen in evidence.hosts:
        if seen.noise.strip():
            line = seen.noise.strip().splitlines()[0][:80]
            yield warn(seen.name, f"the login shell prints {line!r} without a terminal")


CHECKS = (
    Check(
        name="connection",
        category=CATEGORY,
        title="every host is reached by SSH",
        judge=_failed(_is_connection),
        symptom="the job never starts: the other hosts wait for this one in the rendezvous, 600 s by default",
        fix="try `ssh HOST true`; --limit leaves a host out; where the account is missing, users.yml makes it",
    ),
    Check(
        name="host-keys",
        category=CATEGORY,
        title="every host has the key that is known",
        judge=_failed(_is_key),
        after=("connection",),
        symptom="Host key verification failed",
        fix="`clusterddp up` shows unknown keys; one that has changed must be explained by whoever runs the host",
    ),
    Check(
        name="helper",
        category=CATEGORY,
        title="our helper starts on every host",
        judge=_failed(_is_helper),
        after=("connection", "host-keys"),
        symptom="python3: command not found",
        fix="see what stops it: `ssh HOST python3 --version`; ansible_python_interpreter names another Python",
        playbook="python.yml",
    ),
    Check(
        name="login-noise",
        category=CATEGORY,
        title="login shells print nothing",
        judge=_noise,
        after=("connection", "host-keys", "helper"),
        symptom="rsync, scp: protocol version mismatch, is your shell clean? (clusterddp itself reads past it)",
        fix="let the shell's rc file print only where there is a terminal: [ -t 1 ] && …",
    ),
)
