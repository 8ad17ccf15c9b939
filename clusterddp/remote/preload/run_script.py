"""Run another script than the interpreter was begun with: a worker of a run that was begun from a warm server.

The warm server is `python -u -c COMMAND`. A worker that is forked from it comes back from Python's start-up, so Python
runs that command there. It finds a function of ours in `__main__`, which runs the worker's own script or module.
"""

import os
import sys
from functools import partial
from typing import Any, Dict, Sequence

from ..fork_server.fork_checks import RefusedError

NAME = "clusterddp_main"
COMMAND = NAME + "()"  # what a warm server is begun with


def run_later(argv: Sequence[str]) -> None:
    """Have COMMAND run ``argv``: ``python -u SCRIPT …`` or ``python -u -m MODULE …``.

    Raises:
        RefusedError: it cannot be run so.
    """
    if sys.version_info < (3, 10):
        raise RefusedError("this Python has no sys.orig_argv")
    rest = list(argv[2:])  # behind python -u
    module = rest[1] if rest[0] == "-m" else ""
    if not module and not _is_source(rest[0]):
        raise RefusedError("%s is no file of Python's source" % rest[0])
    sys.argv[:] = ["-m", *rest[2:]] if module else rest
    sys.orig_argv[:] = argv
    main = vars(sys.modules["__main__"])
    main[NAME] = partial(_run, main, module, rest[0])


def _is_source(path: str) -> bool:
    """Whether a script is one file of text, no folder, archive or byte code; a missing one fails when it is run."""
    try:
        with open(path, "rb") as stream:
            return b"\0" not in stream.read()
    except FileNotFoundError:
        return True
    except OSError:
        return False


def _run(main: Dict[str, Any], module: str, script: str) -> None:
    """Run it in ``__main__`` as Python does."""
    del main[NAME]
    if not getattr(sys.flags, "safe_path", False):
        sys.path[0] = os.getcwd() if module else os.path.dirname(os.path.realpath(script))
    try:
        if module:
            import runpy

            runpy._run_module_as_main(module)  # type: ignore[attr-defined] # noqa: SLF001 - what `python -m` calls
        else:
            _run_script(main, os.path.abspath(script))
    except SystemExit:
        raise
    except BaseException as error:
        _leave_us_out(error)
        raise


def _run_script(main: Dict[str, Any], path: str) -> None:
    from importlib.machinery import SourceFileLoader

    try:
        with open(path, "rb") as stream:
            source = stream.read()
    except OSError as error:  # Python's own words
        words = (sys.orig_argv[0], path, error.errno or 0, error.strerror)  # type: ignore[attr-defined,unused-ignore]
        sys.stderr.write("%s: can't open file %r: [Errno %d] %s\n" % words)
        sys.exit(2)
    main.update(__file__=path, __cached__=None, __loader__=SourceFileLoader("__main__", path))
    exec(compile(source, path, "exec", dont_inherit=True), main)  # noqa: S102 - the user's script


def _leave_us_out(error: BaseException) -> None:
    """Have the excepthook in force see the script's own frames alone."""
    trace, ours, hook = error.__traceback__, _run.__code__.co_filename, getattr(sys, "excepthook", None)
    if hook is None:  # the script has removed it, which Python says itself
        return
    while trace is not None and trace.tb_frame.f_code.co_filename == ours:
        trace = trace.tb_next

    def excepthook(kind: Any, value: BaseException, _: object) -> Any:
        sys.excepthook, sys.last_traceback = hook, trace
        return hook(kind, value.with_traceback(trace), trace)

    sys.excepthook = excepthook
