"""The environment that a host's setup lines leave behind, for everything of the job that starts there.

The lines run once in ``bash -l`` under a constant script. They reach it through a descriptor, so they are never spliced
into shell text and appear in no process listing. The environment at their end is what counts.
"""

import os
from typing import TYPE_CHECKING, Dict, List, Mapping, Sequence

from .bootstrap import Refused

if TYPE_CHECKING:
    from .bounded_child import ChildResult

TIMEOUT = 120.0  # seconds; `conda activate` and `module load` on a cold network file system take tens of them

# A failing command at the top level of the lines ends them (BASH_SOURCE is empty there only: a failure deep inside a
# sourced file is that file's own affair; functions do not inherit the trap). `set --` hides our arguments from
# `source activate`. All before the eval stands on line 1, so that LINENO counts the setup's own lines.
_SCRIPT = (
    "_clusterddp_in=$1 _clusterddp_out=$2; set --; "
    "trap '_clusterddp_rc=$?; if [ ${#BASH_SOURCE[@]} -eq 0 ]; then"
    ' printf "F%s %s" "$_clusterddp_rc" "$LINENO" >&$_clusterddp_out; exit $_clusterddp_rc; fi\' ERR; '
    'eval "$(< "/dev/fd/$_clusterddp_in")"; '
    "trap - ERR; "
    'printf E >&"$_clusterddp_out"; '
    'if [ -x /usr/bin/env ]; then /usr/bin/env -0 >&"$_clusterddp_out"; else env -0 >&"$_clusterddp_out"; fi'
)

# Variables that the shell itself changes; the job shall see the session's values.
_SHELL_VARIABLES = ("_", "PWD", "OLDPWD", "SHLVL")

# Variables that affect what torch finds; the rest (session ids, ports of this connection) changes each time.
_DIGEST_VARIABLES = ("PATH", "CONDA_PREFIX", "VIRTUAL_ENV", "LOADEDMODULES")
_DIGEST_PREFIXES = ("LD_", "PYTHON", "CUDA", "NVIDIA", "HIP", "ROC", "HSA", "TORCH", "NCCL")


def setup_environment(lines: Sequence[str], base_env: Mapping[str, str], *, timeout: float = TIMEOUT) -> Dict[str, str]:
    """The environment after the setup lines ran in one ``bash -l``, starting from ``base_env``; no shell without lines.

    They run in the home folder for at most ``timeout`` seconds. Raises Refused if a line failed, the shell ended early,
    took too long, or there is no bash or no home folder.
    """
    if not lines:
        return dict(base_env)
    answer = _run(lines, dict(base_env), timeout)
    if answer.status is None:
        raise Refused(
            "the setup lines did not end within %d s; last output: %s" % (timeout, answer.last_line() or "none"),
            "look for a line of clusterddp_setup that waits for input",
        )
    if answer.payload[:1] != b"E":
        raise Refused(_failure(lines, answer), "correct clusterddp_setup, run in `bash -l`")
    env = _parse_environment(answer.payload[1:])
    for name in _SHELL_VARIABLES:
        env.pop(name, None)
        if name in base_env:
            env[name] = base_env[name]
    return env


def environment_digest(env: Mapping[str, str]) -> str:
    """A digest of the variables that affect torch; equal for two sessions of one setup."""
    import hashlib  # loads OpenSSL

    digest = hashlib.sha256()
    for name in sorted(env):
        if name in _DIGEST_VARIABLES or name.startswith(_DIGEST_PREFIXES):
            digest.update(("%s=%s\0" % (name, env[name])).encode("utf-8", "surrogateescape"))
    return digest.hexdigest()[:32]


def _run(lines: Sequence[str], env: Dict[str, str], timeout: float) -> "ChildResult":
    """Run the script; its answer is ``F<status> <line>`` for a line that failed, else ``E`` and the environment."""
    from .bounded_child import Child  # most hosts have no setup lines

    text = "\n".join(lines) + "\n"
    argv: List[str] = ["bash", "-l", "-c", _SCRIPT, "clusterddp-setup"]
    home = os.path.expanduser("~")
    try:
        data = text.encode("utf-8", "surrogateescape")
        return Child(argv, env=env, timeout=timeout, cwd=home, input_data=data).answer()
    except OSError as error:
        if error.filename == home:
            raise Refused(
                "the setup lines run in the home folder: %s" % error, "create that folder on the host"
            ) from error
        raise Refused(
            "the setup lines need bash: %s" % error, "install bash on the host, or remove clusterddp_setup"
        ) from error


def _failure(lines: Sequence[str], answer: "ChildResult") -> str:
    """Why the setup lines failed, in one line."""
    last_line = answer.last_line()
    tail = ": " + last_line if last_line else ""
    if answer.payload[:1] != b"F":
        return "the setup lines ended the shell with status %s before their end%s" % (answer.status, tail)
    if ": syntax error" in last_line or "unexpected EOF" in last_line or "unexpected end of file" in last_line:
        return "the setup lines are not valid shell%s" % tail
    status, number = answer.payload[1:].decode().split()
    text = "\n".join(lines).split("\n")
    line = text[int(number) - 1] if 0 < int(number) <= len(text) else text[0]
    return "setup line `%s` failed with status %s%s" % (line.strip()[:200], status, tail)


def _parse_environment(block: bytes) -> Dict[str, str]:
    """Parse the output of ``env -0``."""
    env = {}
    for entry in block.split(b"\0"):
        name, equals, value = entry.partition(b"=")
        if equals and name:
            env[os.fsdecode(name)] = os.fsdecode(value)
    return env
