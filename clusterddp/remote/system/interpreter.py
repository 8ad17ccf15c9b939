"""The Python that workers run: found by its setting, or in the environment after the setup."""

import os
from typing import Dict, List, NamedTuple, Optional

from .bootstrap import Refused
from .programs import find_program

START_TIMEOUT = 30.0  # seconds for an interpreter that only reports its path and version
_REPORT_SCRIPT = (
    "import json, os, sys; os.write(int(sys.argv[2]), json.dumps("
    "[sys.executable, sys.version.split()[0], sys.path]).encode())"
)


class Interpreter(NamedTuple):
    """The Python that workers run."""

    python: str  # absolute, links kept: a virtual environment is its link
    version: str
    path: List[str]  # its sys.path


def find_interpreter(configured: Optional[str], env: Dict[str, str], workdir: Optional[str]) -> Interpreter:
    """Find the workers' interpreter in the environment after the setup: ``configured``, else ``python``, ``python3``.

    ``configured`` is ``clusterddp_python``: a name on PATH, or a path (``~`` and paths relative to ``workdir``, or
    without one to the home folder, allowed). Raises Refused if there is none, or it does not run.
    """
    import json

    from .bounded_child import Child  # who only locates an interpreter starts none

    names = [configured] if configured else ["python", "python3"]
    problem = ""
    for name in names:
        found = locate(name, env, workdir)
        if found is None:
            continue
        answer = Child([found, "-c", _REPORT_SCRIPT], env=env, timeout=START_TIMEOUT, cwd="/", input_data=b"").answer()
        if answer.payload:
            python, version, path = json.loads(answer.payload)
            return Interpreter(str(python) or found, str(version), [str(entry) for entry in path])
        problem = problem or "%s does not run: %s" % (found, answer.last_line() or "status %s" % answer.status)
    message = problem or "no %s in the environment of this host" % " or ".join(names)
    raise Refused(message, "set clusterddp_python to the interpreter that has torch, or clusterddp_setup to bring it")


def locate(name: str, env: Dict[str, str], workdir: Optional[str]) -> Optional[str]:
    """The path of the interpreter ``name``, a name on the environment's PATH or a path.

    None where it does not exist.
    """
    name = os.path.expanduser(name)
    if "/" not in name:
        return find_program(name, env)
    path = os.path.normpath(os.path.join(os.path.expanduser(workdir or "~"), name))
    return path if os.access(path, os.X_OK) and os.path.isfile(path) else None
