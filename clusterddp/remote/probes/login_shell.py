"""Which Python a login shell on this host finds; a job may find another.

Only what the login's own files set counts: a session of ours, or of a job, is told nothing of here.
"""

import os
from typing import Any, Dict, Optional

from ..system.bootstrap import home_folder
from ..system.bounded_child import Child
from .host import login_shell, user_name

TIMEOUT = 10.0  # seconds; some profiles take three of them on a busy machine, on a hung file server for ever
_KNOWN = ("bash", "sh", "dash", "zsh", "ksh", "fish")  # they take -l and -c together; csh does not
_MARK = "clusterddp-login"  # what a profile prints stands before it
_SCRIPT = "echo %s; command -v python; command -v python3; true" % _MARK


class LoginShell:
    """A login shell asked for its Python; it is started by the constructor, before the process has threads."""

    def __init__(self, shell: Optional[str] = None) -> None:
        shell = shell or login_shell()
        self._child: Optional[Child] = None
        self._error = "the login shell %s is not known" % shell
        if os.path.basename(shell) not in _KNOWN:
            return
        env = {"HOME": home_folder(), "USER": user_name(), "LOGNAME": user_name(), "SHELL": shell}
        env.update(PATH="/usr/local/bin:/usr/bin:/bin", TERM="dumb")
        try:
            self._child = Child([shell, "-l", "-c", _SCRIPT], env=env, timeout=TIMEOUT, cwd="/")
        except OSError as error:
            self._error = "%s does not start: %s" % (shell, error.strerror)

    def told(self, python: Optional[str]) -> Dict[str, Any]:
        """``{python, same, error}``: what a login finds (null: none), and whether it is the interpreter given."""
        if self._child is None:
            return {"python": None, "same": False, "error": self._error}
        answer = self._child.answer()
        _, mark, said = answer.payload.decode("utf-8", "replace").partition(_MARK + "\n")
        if not mark:
            return {"python": None, "same": False, "error": "a login shell did not come to its prompt"}
        found = next((line for line in said.splitlines() if line.startswith("/")), None)
        same = bool(found and python and identity(found) == identity(python))
        return {"python": found, "same": same, "error": None}


def identity(python: str) -> str:
    """Equal for two paths of one interpreter with one set of packages: a virtual environment is not its base."""
    venv = os.path.dirname(os.path.dirname(python))
    inside = os.path.exists(os.path.join(venv, "pyvenv.cfg"))
    return "%s %s" % (os.path.realpath(python), os.path.realpath(venv) if inside else "")
