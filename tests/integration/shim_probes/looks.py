"""Everything a script can see of how it was started, as JSON in the file named by argv[1]. Runs on Python 3.8."""

# A worker's script as people write them, for interpreters older than the tests'.
# ruff: noqa: ANN001, ANN002, ANN201, ANN204, E402, PTH109, PTH115, PTH123, PTH208
# mypy: ignore-errors

import sys

MODULES = sorted(sys.modules)
GLOBALS = sorted(globals())
PATH_CACHE = sorted(map(str, sys.path_importer_cache))

import atexit
import faulthandler
import gc
import inspect
import io
import json
import locale
import os
import pickle
import resource
import signal
import threading
import time
import warnings


class Point:
    def __init__(self, x):
        self.x = x


def stream(of):
    buffer = of.buffer
    raw = getattr(buffer, "raw", buffer)
    own = [
        repr(getattr(of, n, None)) for n in ("encoding", "errors", "line_buffering", "write_through", "mode", "name")
    ]
    place = [repr(of), of.isatty(), of.fileno(), of.writable(), of.readable(), str(of.newlines)]
    kinds = [str(type(of)), str(type(buffer)), str(type(raw)), type(raw) is io.FileIO]
    return own + place + kinds + [repr(buffer), str(buffer.name), buffer.mode, raw.closefd, of.seekable()]


def status(*names):
    with open("/proc/self/status") as file:
        return [line.split() for line in file if line.startswith(names)]


def descriptors():
    found = {}
    for name in os.listdir("/proc/self/fd"):
        try:
            target = os.readlink("/proc/self/fd/" + name)
        except FileNotFoundError:
            continue  # the listing's own
        ours = "/stacks/" in target or target.startswith("socket:")  # the server for traces listens
        if int(name) > 2 and not (int(name) > 200 and ours):
            found[name] = target
    return found


def hooks():
    pairs = [(sys.excepthook, sys.__excepthook__), (sys.displayhook, sys.__displayhook__)]
    pairs += [(sys.stdout, sys.__stdout__), (sys.stderr, sys.__stderr__), (sys.stdin, sys.__stdin__)]
    names = [getattr(sys.excepthook, n, None) for n in ("__name__", "__qualname__", "__module__", "__doc__")]
    thread = getattr(threading, "__excepthook__", threading.excepthook)
    return [left is right for left, right in pairs] + names + [repr(sys.unraisablehook), threading.excepthook is thread]


def umask():
    value = os.umask(0)
    os.umask(value)
    return value


def report():
    posix = sys.modules["posix"].environ
    main = sys.modules["__main__"]
    limits = {n: resource.getrlimit(getattr(resource, n)) for n in dir(resource) if n.startswith("RLIMIT_")}
    return {
        "modules": MODULES,
        "globals": GLOBALS,
        "path_cache": PATH_CACHE,
        "argv": sys.argv,
        "orig_argv": getattr(sys, "orig_argv", None),
        "path": sys.path,
        "flags": str(sys.flags),
        "executable": [sys.executable, sys.prefix, sys.exec_prefix],
        "xoptions": [str(sys._xoptions), sys.warnoptions],
        "finders": [str(sys.meta_path), len(sys.path_hooks)],
        "stdin": stream(sys.stdin),
        "stdout": stream(sys.stdout),
        "stderr": stream(sys.stderr),
        "hooks": hooks(),
        "environ": dict(os.environ),
        "environ_order": list(os.environ),
        "posix": {os.fsdecode(n): os.fsdecode(v) for n, v in posix.items()},
        "signals": {str(n): str(signal.getsignal(n)) for n in signal.valid_signals()},
        "masks": status("SigBlk", "SigIgn", "SigPnd", "ShdPnd", "Seccomp", "NoNewPrivs", "Cap"),
        "blocked": sorted(map(int, signal.pthread_sigmask(signal.SIG_BLOCK, []))),
        "umask": umask(),
        "cwd": os.getcwd(),
        "fds": descriptors(),
        "limits": limits,
        "nice": [os.nice(0), sorted(os.sched_getaffinity(0)), os.getgroups(), os.getuid()],
        "main": [
            main.__name__,
            str(main.__spec__),
            str(main.__package__),
            main.__file__,
            str(main.__loader__)[:40],
        ],
        "threads": [threading.active_count(), threading.current_thread().name],
        "gc": [gc.get_threshold(), gc.isenabled(), gc.callbacks],
        "warnings": [str(entry) for entry in warnings.filters],
        "atexit": atexit._ncallbacks(),
        "faulthandler": faulthandler.is_enabled(),
        "trace": [str(sys.gettrace()), str(sys.getprofile()), sys.getswitchinterval(), sys.getrecursionlimit()],
        "locale": [locale.setlocale(locale.LC_ALL), sys.getfilesystemencoding(), time.tzname],
        "source": [inspect.getsource(Point), inspect.getsourcefile(report), inspect.getmodule(Point).__name__],
        "pickle": pickle.dumps(Point(1), 2).decode("latin-1"),
        "fields": sorted(vars(sys.stdin.buffer.raw)),
    }


if __name__ == "__main__":
    with open(sys.argv[1], "w") as file:
        json.dump(report(), file)
