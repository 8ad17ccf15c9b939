"""A script cannot tell the shim from `python -u SCRIPT`: both are run and what they saw is compared.

Known differences, not asserted: the parent's pid, the session's leader, /proc/self/environ, oom_score_adj, the caught
signals of /proc/self/status, the type of sys.excepthook (a Python function that bears the original's name),
`sys.stdout.buffer.write` (an instance attribute), and the code of `PathFinder.find_spec` until torch.distributed is
imported. From then on torch's server for traces is there: its threads, its socket (a descriptor above 250), one more
function of atexit, and from Python 3.12 on the DeprecationWarning of an `os.fork()` in the script itself.
"""

from __future__ import annotations

import json
import shutil
import textwrap
from typing import TYPE_CHECKING, Any

import pytest

from tests.integration.shim_spool import (
    PROBES,
    Ended,
    ShimSpool,
    environment,
    make_spool,
    run_plain,
    without_addresses,
)
from tests.pythons import INTERPRETERS, interpreter

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture(params=INTERPRETERS)
def python(request: pytest.FixtureRequest) -> str:
    """Each Python a worker may run on."""
    return interpreter(request.param)


@pytest.fixture
def spool(tmp_path: Path, python: str) -> ShimSpool:
    """A spool whose workers run on that Python, and the probes in the working folder."""
    made = make_spool(tmp_path, python=python, helper=python)
    package = made.cwd / "pkg"
    package.mkdir()
    (package / "__init__.py").write_text("")
    shutil.copy(PROBES / "looks.py", package / "looks.py")
    shutil.copy(PROBES / "looks.py", made.cwd / "looks.py")
    return made


def seen(spool: ShimSpool, python: str, *args: str, env: dict[str, str] | None = None) -> tuple[Any, Any]:
    """What the probe saw: plainly, and through the shim."""
    report = spool.cwd / "report.json"
    views = []
    for through_shim in (False, True):
        ended = spool.run(*args, env=env) if through_shim else run_plain(spool, python, *args, env=env)
        assert (ended.returncode, ended.out, ended.err) == (0, b"", b"")
        views.append(json.loads(without_addresses(report.read_bytes())))
        report.unlink()
    return views[0], views[1]


@pytest.mark.parametrize("how", [("looks.py",), ("-m", "pkg.looks"), ("-m", "looks")], ids=" ".join)
def test_a_script_and_a_module_see_the_same(spool: ShimSpool, python: str, how: tuple[str, ...]) -> None:
    plain, shim = seen(spool, python, "-u", *how, "report.json", "--lr", "a b'c\"$(x)\n")
    assert shim == plain


@pytest.mark.parametrize("value", ["lib:more", "", ":lib", "lib:"])
def test_the_users_own_pythonpath_is_seen_as_it_was(spool: ShimSpool, python: str, value: str) -> None:
    plain, shim = seen(spool, python, "-u", "looks.py", "report.json", env=environment(PYTHONPATH=value))
    assert shim == plain


def test_buffered_output_looks_the_same_without_u(spool: ShimSpool, python: str) -> None:
    plain, shim = seen(spool, python, "looks.py", "report.json")
    assert shim == plain


def test_without_any_locale_python_makes_its_own_choice_as_ever(spool: ShimSpool, python: str) -> None:
    bare = {name: value for name, value in environment().items() if name != "LANG" and not name.startswith("LC_")}
    plain, shim = seen(spool, python, "-u", "looks.py", "report.json", env=bare)
    assert shim == plain


@pytest.mark.parametrize("locale", ["C", "C.UTF-8", "POSIX"])
def test_locales_and_their_encodings_are_the_same(spool: ShimSpool, python: str, locale: str) -> None:
    plain, shim = seen(spool, python, "-u", "looks.py", "report.json", "\udcff", env=environment(LC_ALL=locale))
    assert shim == plain


def test_the_hosts_own_sitecustomize_and_usercustomize_run_as_ever(spool: ShimSpool, python: str) -> None:
    (spool.cwd / "own").mkdir()
    body = "import os, sys\nos.environ['OWN_{0}'] = __name__ + __file__ + repr(sys.path) + os.environ['PYTHONPATH']\n"
    for name in ("sitecustomize", "usercustomize"):
        (spool.cwd / "own" / f"{name}.py").write_text(body.format(name))
    env = environment(PYTHONPATH=str(spool.cwd / "own"), PYTHONDONTWRITEBYTECODE="1")
    plain, shim = seen(spool, python, "-u", "looks.py", "report.json", env=env)
    assert shim == plain
    assert "OWN_sitecustomize" in plain["environ"]  # a virtual environment runs no usercustomize
    assert "sitecustomize" in plain["modules"]


@pytest.mark.parametrize(
    "body", ["import no_such_module", "1 / 0", "raise SystemExit(4)", "import sys; sys.exit('no')"]
)
def test_a_failing_sitecustomize_of_the_host_fails_in_the_same_words(spool: ShimSpool, python: str, body: str) -> None:
    (spool.cwd / "own").mkdir()
    (spool.cwd / "own" / "sitecustomize.py").write_text(body)
    (spool.cwd / "hello.py").write_text("import sys; print('hello', 'sitecustomize' in sys.modules)")
    env = environment(PYTHONPATH=str(spool.cwd / "own"))
    plain = run_plain(spool, python, "-u", "hello.py", env=env)
    shim = spool.run("-u", "hello.py", env=env)
    assert (shim.returncode, shim.out) == (plain.returncode, plain.out)
    assert without_our_frames(shim.err, spool) == plain.err


def without_our_frames(err: bytes, spool: ShimSpool) -> bytes:
    """Where Python prints a traceback of its own start-up, our import stands between the two of the host."""
    lines = err.decode().splitlines(keepends=True)
    ours = str(spool.folder / "hook")
    kept, skipping = [], False
    for line in lines:
        if line.startswith("  File "):
            skipping = ours in line
        elif not line.startswith("    "):
            skipping = False
        if not skipping:
            kept.append(line)
    return "".join(kept).encode()


CHAIN = "try: {}['k']\nexcept KeyError as e: raise ValueError('lõss is NaN') from e"
ENDINGS = {
    "returns": "print('out'); import sys; print('err', file=sys.stderr)",
    "raises": "def f(n):\n    return f(n - 1) if n else 1 / 0\nf(3)",
    "chained": CHAIN,
    "recursion": "def f(): f()\nf()",
    "syntax error": "print('x'\n",
    "import error": "import no_such_module_at_all",
    "interrupted": "raise KeyboardInterrupt",
    "interrupted in a callee": "def f(): raise KeyboardInterrupt('now')\nf()",
    "exit 0": "import sys; sys.exit(0)",
    "exit 3": "import sys; sys.exit(3)",
    "exit text": "import sys; sys.exit('cannot go on')",
    "exit 300": "import sys; sys.exit(300)",
    "system exit in a thread": "import threading, sys\nt = threading.Thread(target=sys.exit)\nt.start(); t.join()",
    "raises in a thread": "import threading\nt = threading.Thread(target=lambda: 1/0, name='t')\nt.start(); t.join()",
    "atexit order": "import atexit\nfor i in range(3): atexit.register(print, i)\nraise ValueError('x')",
    "raises in atexit": "import atexit\n@atexit.register\ndef f(): 1/0",
    "pickles in atexit": "import atexit, pickle\nclass C: pass\natexit.register(lambda: print(pickle.dumps(C())))",
    "unraisable": "class C:\n    def __del__(self): 1/0\nC()",
    "warns": "import warnings\nwarnings.warn('old')\nwarnings.warn('dep', DeprecationWarning)",
    "own excepthook": "import sys\nsys.excepthook = lambda *a: print('mine', a[0], a[1])\n1/0",
    "excepthook that raises": "import sys\ndef h(*a): raise KeyError('h')\nsys.excepthook = h\n1/0",
    "excepthook deleted": "import sys\ndel sys.excepthook\n1/0",
    "excepthook restored": "import sys\nsys.excepthook = None\nsys.excepthook = sys.__excepthook__\n1/0",
    "str that raises": "class E(Exception):\n    def __str__(self): raise KeyError\nraise E",
    "kills itself": "import os, signal; os.kill(os.getpid(), signal.SIGTERM)",
    "aborts": "import resource, os; resource.setrlimit(resource.RLIMIT_CORE, (0, 0)); os.abort()",
    "broken pipe": "import os\nr, w = os.pipe(); os.close(r); os.write(w, b'x')",
    "os._exit": "import os; print('x', end=''); os._exit(9)",
    "partial output": "import sys; sys.stdout.write('a'); sys.stdout.buffer.write(b'b'); print('c', end='\\r')",
    "closed stdout": "import os, sys; os.close(1)\ntry: print('x')\nexcept OSError as e: sys.exit(str(e.errno))",
    "detached stdout": "import sys, io\nsys.stdout = io.TextIOWrapper(sys.stdout.detach())\nprint('x', flush=True)",
    "writelines": "import sys; sys.stdout.writelines(['a', 'b']); sys.stdout.buffer.writelines([b'c', b'd'])",
    "wrong type": "import sys\ntry: sys.stdout.buffer.write('x')\nexcept TypeError as e: print(e)",
    "interactive": "import code\nprint(code.__name__)",
    "non-ascii": "print('\\u2713', flush=True); raise ValueError('\\u2713')",
    "forked child raises": "import os\npid = os.fork()\nif not pid: 1/0\nprint(os.waitpid(pid, 0)[1])",
    "import faulthandler": "import faulthandler as f, sys\nf.enable(); f.dump_traceback(file=sys.stdout)",
    "reads nothing": "import sys; print(repr(sys.stdin.read()))",
}


@pytest.mark.parametrize("ending", ENDINGS)
def test_every_ending_reads_and_counts_the_same(spool: ShimSpool, python: str, ending: str) -> None:
    (spool.cwd / "script.py").write_text(textwrap.dedent(ENDINGS[ending]), encoding="utf-8")
    plain = run_plain(spool, python, "-u", "script.py")
    shim = spool.run("-u", "script.py")
    assert normal(shim) == normal(plain)


@pytest.mark.parametrize("ending", ["raises", "interrupted", "exit 3", "syntax error", "kills itself"])
def test_every_ending_of_a_module_reads_and_counts_the_same(spool: ShimSpool, python: str, ending: str) -> None:
    (spool.cwd / "pkg" / "script.py").write_text(textwrap.dedent(ENDINGS[ending]), encoding="utf-8")
    plain = run_plain(spool, python, "-u", "-m", "pkg.script")
    assert normal(spool.run("-u", "-m", "pkg.script")) == normal(plain)


def normal(ended: Ended) -> tuple[int, bytes, bytes]:
    return ended.returncode, without_addresses(ended.out), without_addresses(ended.err)


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_children_of_every_start_method_start_without_us(spool: ShimSpool, python: str, method: str) -> None:
    shutil.copy(PROBES / "children.py", spool.cwd)
    plain = run_plain(spool, python, "-u", "children.py", method)
    shim = spool.run("-u", "children.py", method)
    assert plain.returncode == 0, plain.err
    assert (shim.returncode, shim.err) == (0, plain.err)
    assert json.loads(shim.out) == json.loads(plain.out)
