"""``--version --verbose``: print the versions that a bug report should contain."""

from __future__ import annotations

import os
import platform
import shutil
import sys

from clusterddp.cli.output import say
from clusterddp.project.crash import LIBRARIES, version

_PROGRAMS = ("ssh", "ansible-playbook", "git", "uv", "sbatch")


def say_versions() -> None:
    """Say on stderr which Python, libraries, programs and terminal are used; no path and no name of a host."""
    say(f"python {platform.python_version()} on {platform.platform()}")
    say(", ".join(f"{name} {version(name)}" for name in LIBRARIES))
    say(f"programs: {', '.join(name for name in _PROGRAMS if shutil.which(name)) or 'none'}")
    say(f"terminal: {os.environ.get('TERM', 'none')}, {'' if sys.stdout.isatty() else 'not '}interactive")
