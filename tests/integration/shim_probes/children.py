"""What children of a script see, by multiprocessing's start method argv[1] and by subprocess, as JSON. Python 3.8."""

# A worker's script as people write them, for interpreters older than the tests'.
# ruff: noqa: ANN001, ANN201, ANN204
# mypy: ignore-errors

import json
import multiprocessing
import os
import pickle
import subprocess
import sys


class Answer:
    """Travels back pickled: its class lives in __main__ here and in the child."""

    def __init__(self, value):
        self.value = value


def look(number):
    names = sorted(n for n in os.environ if n.startswith(("CLUSTERDDP", "PYTHON", "PET_", "TORCHELASTIC")))
    own = "write" in vars(sys.stdout.buffer) if hasattr(sys.stdout, "buffer") else None
    inherited = multiprocessing.get_start_method() == "fork"
    hook = sys.excepthook is sys.__excepthook__
    modules = "sitecustomize" in sys.modules, "faulthandler" in sys.modules
    return Answer([number, names, sys.path[1:], sys.argv, hook, modules, Answer.__module__, inherited or own])


def subprocess_view():
    code = "import os, sys, json; print(json.dumps([dict(os.environ), sys.path, type(sys.excepthook).__name__]))"
    return json.loads(subprocess.check_output([sys.executable, "-c", code]))


if __name__ == "__main__":
    multiprocessing.set_start_method(sys.argv[1])
    with multiprocessing.Pool(2) as pool:
        answers = [answer.value for answer in pool.map(look, range(3), chunksize=1)]
    event = multiprocessing.Event()  # a semaphore: starts the resource tracker
    event.set()
    view = subprocess_view()
    print(json.dumps([answers, view, pickle.loads(pickle.dumps(Answer(5))).value]))
