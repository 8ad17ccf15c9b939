"""Which Python a login shell on this host finds; a job may find another.

Only what the login's own files set counts: the shell gets none of the variables of our session or of a job.
"""

import os
from typing import Optional

from ..shared.probes.health_records import LoginPython
from ..system.bootstrap import home_folder
from ..system.bounded_child import Child
from .host import login_shell, user_name

TIMEOUT = 10.0  # seconds; some profiles take three on a busy machine, or for ever on a hung file server
_SUPPORTED_SHELLS = ("bash", "sh", "dash", "zsh", "ksh", "fish")  # these accept -l and -c together; csh does not
_MARKER = "clusterddp-login"  # separates a profile's own output, before it, from the answer
_SCRIPT = "echo %s; command -v python; command -v python3; true" % _MARKER


class LoginShell:
    """A login shell asked for its Python. Making it starts the shell: do so before the process has threads."""

    def __init__(self, shell: Optional[str] = None) -> None:
        shell = shell or login_shell()
        self._child: Optional[Child] = None
        self._error = "the login shell %s is not known" % shell
        if os.path.basename(shell) not in _SUPPORTED_SHELLS:
            return
        env = {"HOME": home_folder(), "USER": user_name(), "LOGNAME": user_name(), "SHELL": shell}
        env.update(PATH="/usr/local/bin:/usr/bin:/bin", TERM="dumb")
        try:
            self._child = Child([shell, "-l", "-c", _SCRIPT], env=env, timeout=TIMEOUT, cwd="/")
        except OSError as error:
            self._error = "%s does not start: %s" % (shell, error.strerror)

    def answer(self, python: Optional[str]) -> LoginPython:
        """The Python that a login finds, and whether it is the one given."""
        if self._child is None:
            return LoginPython(error=self._error)
        answer = self._child.answer()
        _, marker, output = answer.text.partition(_MARKER + "\n")
        if not marker:
            return LoginPython(error="a login shell did not come to its prompt")
        found = next((line for line in output.splitlines() if line.startswith("/")), None)
        same = bool(found and python and identity(found) == identity(python))
        return LoginPython(python=found, same=same)


def identity(python: str) -> str:
    """A string that is equal for two paths of one interpreter and set of packages.

    A virtual environment is another interpreter than its base.
    """
    venv = os.path.dirname(os.path.dirname(python))
    inside = os.path.exists(os.path.join(venv, "pyvenv.cfg"))
    return "%s %s" % (os.path.realpath(python), os.path.realpath(venv) if inside else "")
