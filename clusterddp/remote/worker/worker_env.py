"""The script torchrun starts for each worker (PYTHON_EXEC), and the environment the worker gets."""

import os
import shlex
from typing import Any, Dict

from ..shared.run.plan import NodePlan
from ..spool.layout import Spool
from ..system.bootstrap import write_private

# The names recorded at a start; the rest of the environment is never written anywhere.
RECORDED = (
    ("round", "CLUSTERDDP_ROUND"),
    ("rank", "RANK"),
    ("world_size", "WORLD_SIZE"),
    ("local_world_size", "LOCAL_WORLD_SIZE"),
    ("group_rank", "GROUP_RANK"),
    ("group_world_size", "GROUP_WORLD_SIZE"),
    ("master_addr", "MASTER_ADDR"),
    ("master_port", "MASTER_PORT"),
    ("restart_count", "TORCHELASTIC_RESTART_COUNT"),
    ("max_restarts", "TORCHELASTIC_MAX_RESTARTS"),
)
TEXT = ("master_addr",)
PRIVATE = ("PYTHON_EXEC", "CLUSTERDDP_ROUND", "CLUSTERDDP_PARTICIPANTS")  # of ours; the hook removes its own two
PRIVATE_PREFIX = "PET_"  # torchrun's own options: a script that runs torchrun itself would obey them
LONGEST_SHEBANG = 120  # bytes; kernels before 5.1 cut the line at 127


def shim_script(interpreter: str, code: str, spool: str) -> str:
    """The text of the executable that torchrun gets as PYTHON_EXEC: the shim of ``spool``, from the zipapp ``code``.

    Plainly a Python script: a shell would put its own names (PWD, SHLVL, ``_``) into the worker's environment. Only
    for an interpreter that a ``#!`` line cannot name (blanks, too long) it is a shell script after all.
    """
    line = "#!%s -IS\n" % interpreter
    if len(os.fsencode(line)) > LONGEST_SHEBANG or len(interpreter.split()) != 1:
        words = [interpreter, "-I", "-S", code, "shim", spool]
        return '#!/bin/sh\nexec %s "$@"\n' % " ".join(map(shlex.quote, words))
    call = "from clusterddp_remote.__main__ import main\nsys.exit(main(['shim', %a, *sys.argv[1:]]))\n" % spool
    return line + "import sys\nsys.path.insert(0, %a)\n" % code + call


def original_environment(environ: Dict[str, str]) -> Dict[str, str]:
    """This process's environment as it was given: where no locale is set, Python adds LC_CTYPE to its own.

    Handed on, it would turn the worker's UTF-8 mode off.
    """
    try:
        with open("/proc/self/environ", "rb") as stream:
            given = {entry.partition(b"=")[0] for entry in stream.read().split(b"\0")}
    except OSError:
        return environ
    return {name: value for name, value in environ.items() if name != "LC_CTYPE" or b"LC_CTYPE" in given}


def worker_environment(environ: Dict[str, str], spool: str, key: str) -> Dict[str, str]:
    """The worker's environment: what torchrun gave, without what is ours, with the way to the hook.

    CLUSTERDDP_HOOK and CLUSTERDDP_USER_PYTHONPATH are there for the hook, which removes them and restores
    PYTHONPATH before any of the user's code. torchrun's error file stays where torchrun reads it.

    Args:
        environ: The shim's own environment.
        spool: The spool's absolute path.
        key: ``<start>.<local_rank>``.
    """
    env = {n: v for n, v in environ.items() if n not in PRIVATE and not n.startswith(PRIVATE_PREFIX)}
    if not env.get("TORCHELASTIC_ERROR_FILE"):
        env["TORCHELASTIC_ERROR_FILE"] = os.path.join(spool, "errors", key + ".json")
    hook = os.path.join(spool, "hook")
    user = env.get("CLUSTERDDP_USER_PYTHONPATH")
    if os.pathsep in hook:  # PYTHONPATH cannot say it: run without the hook
        env.pop("CLUSTERDDP_USER_PYTHONPATH", None)
        env.pop("PYTHONPATH", None)
        return env if user is None else dict(env, PYTHONPATH=user)
    env["CLUSTERDDP_HOOK"] = key
    env["PYTHONPATH"] = hook + os.pathsep + user if user else hook
    return env


def fork_server_environment(environ: Dict[str, str], spool: str, told: object) -> Dict[str, str]:
    """A fork server's: what all workers of the agent with ``environ`` have in common, with the way to the hook.

    Args:
        environ: The agent's environment, with the secrets.
        spool: The spool's absolute path.
        told: The descriptor of its socket to the supervisor, or what a warm server is told.
    """
    env = worker_environment(environ, spool, "fork-server %s" % (told,))
    env.pop("TORCHELASTIC_ERROR_FILE")
    return env


def script_environment(env: Dict[str, str]) -> Dict[str, str]:
    """What the hook makes of ``worker_environment`` before any code of the user: the environment the script sees."""
    user = env.get("CLUSTERDDP_USER_PYTHONPATH")
    if "CLUSTERDDP_HOOK" not in env:  # it runs without the hook
        return dict(env)
    given = {
        name: value for name, value in env.items() if name not in ("CLUSTERDDP_HOOK", "CLUSTERDDP_USER_PYTHONPATH")
    }
    if user is None:
        given.pop("PYTHONPATH", None)
    else:
        given["PYTHONPATH"] = user
    return given


def recorded_variables(env: Dict[str, str]) -> Dict[str, Any]:
    """The variables in ``RECORDED`` from an environment by field, numbers as int, None where absent."""
    values: Dict[str, Any] = {}
    for field, name in RECORDED:
        value = env.get(name)
        values[field] = int(value) if value and value.isdigit() and field not in TEXT else value
    return values


def wrong_size(plan: NodePlan, record: Dict[str, Any]) -> str:
    """Why a round is not what the plan says; empty if it is.

    torchrun's c10d has been seen to shrink a job to one host, which then trained on alone and ended well.
    """
    if plan.elastic:
        nodes, least = record["group_world_size"], plan.min_nodes
        return "this round has %d nodes, and %d are needed" % (nodes, least) if nodes and nodes < least else ""
    workers, planned = record["world_size"], plan.world_size
    if workers is None or workers == planned:
        return ""
    return "this round has %s workers in place of %s; do the clocks of the hosts differ?" % (workers, planned)


def write_worker(spool: Spool, interpreter: str) -> None:
    """Write the program torchrun starts for each worker: the shim, by the interpreter the worker itself has."""
    text = shim_script(interpreter, spool.code, spool.folder)
    write_private(spool.path("worker"), text.encode(), 0o700, durable=False)
