"""What tests start is what a login would start, whoever started the tests."""

from __future__ import annotations

import json
import resource
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests import login

# Through /proc, as another program sees it; Python's own ignored signals are given back by Popen.
LOOKS = """
import json, os, resource, subprocess, sys
from tests import login
login.begin()
tells = '''
import json, os, resource
status = dict(line.split()[:2] for line in open("/proc/self/status") if len(line.split()) > 1)
limits = [getattr(resource, name) for name in ("RLIMIT_NOFILE", "RLIMIT_CORE", "RLIMIT_STACK", "RLIMIT_FSIZE")]
print(json.dumps([status["SigIgn:"], status["SigBlk:"], status["Umask:"],
                  [resource.getrlimit(one)[0] for one in limits], dict(os.environ)]))
'''
subprocess.run([sys.executable, "-S", "-c", tells], check=True)
"""
STRANGE = (
    "trap '' HUP INT QUIT TERM USR1 USR2 CHLD TSTP TTIN TTOU ALRM PIPE; umask 077; ulimit -Sn 64; ulimit -Sf 100000"
)
BLOCKS = "import os, signal, sys; signal.pthread_sigmask(0, {2, 3, 10, 34}); os.execv(sys.argv[1], sys.argv[1:])"


def told(script: str) -> Any:
    """What a child of tests sees that a shell started by this script."""
    argv = ["sh", "-c", script, "sh", sys.executable, "-c", BLOCKS, sys.executable, "-c", LOOKS]
    strange = {"PATH": "/usr/bin:/bin", "HOME": "/h", "LC_ALL": "C", "PYTHONPATH": "/x", "RANK": "3", "LANG": "POSIX"}
    root = Path(__file__).parents[2]
    return json.loads(
        subprocess.run(argv, stdout=subprocess.PIPE, check=True, env=strange, cwd=root, timeout=30).stdout
    )


def test_tests_begin_as_at_a_login_whatever_started_them() -> None:
    ignored, blocked, umask, limits, env = told(f'{STRANGE}; exec "$@"')
    of_python = 1 << 12 | 1 << 24  # SIGPIPE and SIGXFSZ, of the child's own interpreter
    of_glibc = 1 << 31 | 1 << 32  # left ignored by posix_spawn (`make` starts so); no program may set them
    assert int(ignored, 16) & ~(of_python | of_glibc) == 0
    assert int(blocked, 16) == 0
    assert umask == "0022"
    assert limits == [1024, 0, 8 << 20, resource.RLIM_INFINITY]
    assert env == {"PATH": "/usr/bin:/bin", "HOME": "/h", "LANG": login.LANG}


def test_a_job_in_a_shells_background_is_no_different() -> None:
    assert told('"$@" & wait $!') == told('exec "$@"')


def test_python3_is_an_interpreter_though_a_version_managers_script_comes_first(tmp_path: Path) -> None:
    script = tmp_path / "python3"
    script.write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')
    script.chmod(0o755)
    *_, env = told(f'PATH={tmp_path}:$PATH; exec "$@"')
    assert env["PATH"] == f"{Path(sys.executable).parent}:{tmp_path}:/usr/bin:/bin"
