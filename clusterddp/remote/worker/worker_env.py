"""The program that torchrun starts for each worker (PYTHON_EXEC), and the worker's environment."""

import os
from typing import TYPE_CHECKING, Any, Dict

from ..system.bootstrap import write_private

if TYPE_CHECKING:
    from ..shared.run.plan import NodePlan
    from ..spool.layout import Spool

# The variables recorded at a start; the rest of the environment is never written anywhere.
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
PRIVATE = ("PYTHON_EXEC", "CLUSTERDDP_ROUND", "CLUSTERDDP_PARTICIPANTS")  # set by us; the hook removes its own two
PRIVATE_PREFIX = "PET_"  # torchrun's own options: a script that runs torchrun itself would obey them
MAX_SHEBANG = 120  # bytes; kernels before 5.1 cut the line at 127


def shim_script(interpreter: str, code: str, spool: str) -> str:
    """The text of the executable that torchrun gets as PYTHON_EXEC.

    It runs the shim for ``spool`` from the zipapp ``code``. It is a Python script: a shell would put its own variables
    (PWD, SHLVL, ``_``) into the worker's environment. Only if a ``#!`` line cannot name the interpreter (blanks, too
    long) is it a shell script after all.
    """
    line = "#!%s -IS\n" % interpreter
    if len(os.fsencode(line)) > MAX_SHEBANG or len(interpreter.split()) != 1:
        import shlex

        argv = [interpreter, "-I", "-S", code, "shim", spool]
        return '#!/bin/sh\nexec %s "$@"\n' % " ".join(map(shlex.quote, argv))
    call = "from clusterddp_remote.__main__ import main\nsys.exit(main(['shim', %a, *sys.argv[1:]]))\n" % spool
    return line + "import sys\nsys.path.insert(0, %a)\n" % code + call


def original_environment(environ: Dict[str, str]) -> Dict[str, str]:
    """This process's environment as it was given: where no locale is set, Python adds LC_CTYPE to its own.

    Passed on, that would turn off the worker's UTF-8 mode.
    """
    try:
        with open("/proc/self/environ", "rb") as stream:
            given = {entry.partition(b"=")[0] for entry in stream.read().split(b"\0")}
    except OSError:
        return environ
    return {name: value for name, value in environ.items() if name != "LC_CTYPE" or b"LC_CTYPE" in given}


def worker_environment(environ: Dict[str, str], spool: str, key: str) -> Dict[str, str]:
    """The worker's environment: torchrun's, without our private variables, and with the hook on PYTHONPATH.

    CLUSTERDDP_HOOK and CLUSTERDDP_USER_PYTHONPATH are for the hook, which removes them and restores PYTHONPATH before
    any of the user's code. torchrun's error file stays where torchrun reads it. ``environ`` is the shim's environment,
    ``spool`` an absolute path, ``key`` ``<start>.<local_rank>``.
    """
    env = {n: v for n, v in environ.items() if n not in PRIVATE and not n.startswith(PRIVATE_PREFIX)}
    if not env.get("TORCHELASTIC_ERROR_FILE"):
        env["TORCHELASTIC_ERROR_FILE"] = os.path.join(spool, "errors", key + ".json")
    hook = os.path.join(spool, "hook")
    user = env.get("CLUSTERDDP_USER_PYTHONPATH")
    if os.pathsep in hook:  # PYTHONPATH cannot hold it: run without the hook
        env.pop("CLUSTERDDP_USER_PYTHONPATH", None)
        env.pop("PYTHONPATH", None)
        return env if user is None else dict(env, PYTHONPATH=user)
    env["CLUSTERDDP_HOOK"] = key
    env["PYTHONPATH"] = hook + os.pathsep + user if user else hook
    return env


def fork_server_environment(environ: Dict[str, str], spool: str, argument: object) -> Dict[str, str]:
    """The environment of a fork server: what all workers of an agent have in common, with the hook on PYTHONPATH.

    ``environ`` is the agent's environment, with the secrets; ``argument`` is the descriptor of the server's socket to
    the supervisor, or a warm server's arguments.
    """
    env = worker_environment(environ, spool, "fork-server %s" % (argument,))
    env.pop("TORCHELASTIC_ERROR_FILE")
    return env


def script_environment(env: Dict[str, str]) -> Dict[str, str]:
    """The environment that the script sees, once the hook has restored ``worker_environment``'s changes."""
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
    """The variables in ``RECORDED`` by field; numbers as int, None where absent."""
    values: Dict[str, Any] = {}
    for field, name in RECORDED:
        value = env.get(name)
        values[field] = int(value) if value and value.isdigit() and field not in TEXT else value
    return values


def wrong_size(plan: "NodePlan", record: Dict[str, Any]) -> str:
    """Why a round's size is not the plan's; empty if it is.

    torchrun's c10d has been seen to shrink a job to one host, which then trained on alone and succeeded.
    """
    if plan.settings.elastic:
        nodes, least = record["group_world_size"], plan.settings.min_nodes
        return "this round has %d nodes, and %d are needed" % (nodes, least) if nodes and nodes < least else ""
    workers, planned = record["world_size"], plan.world_size
    if workers is None or workers == planned:
        return ""
    return "this round has %s workers in place of %s; do the clocks of the hosts differ?" % (workers, planned)


def write_worker(spool: "Spool", interpreter: str) -> None:
    """Write the program that torchrun starts for each worker: the shim, run by the worker's own interpreter."""
    text = shim_script(interpreter, spool.code, spool.folder)
    write_private(spool.path("worker"), text.encode(), 0o700, durable=False)
