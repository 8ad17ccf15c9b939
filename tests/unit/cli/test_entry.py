"""Ctrl-C while the command is still being imported, and while its main thread waits for a lock."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest

from clusterddp.remote.shared.processes.exit_codes import EXIT_INTERRUPTED

# Ctrl-C comes as a module is about to be imported.
PROGRAM = """
import os, signal, sys, threading
module, *sys.argv[1:] = sys.argv[1:]
def press():
    os.kill(os.getpid(), signal.SIGINT)
{more}
class Presses:
    def find_spec(self, name, *_):
        if name == module:
            press()
sys.meta_path.insert(0, Presses())
from clusterddp.cli.entry import main
main()
"""

# The main thread waits for what never comes, and another one takes the signal.
TAKEN_ELSEWHERE = """
def press():
    never = threading.Event()
    threading.Thread(target=take, args=(never,), daemon=True).start()
    never.wait()
def take(never):
    while not (never._cond._waiters and asleep()):
        pass
    signal.pthread_kill(threading.get_ident(), signal.SIGINT)
def asleep():
    with open(f"/proc/self/task/{os.getpid()}/stat") as main:
        return main.read().rsplit(") ", 1)[1].startswith("S")
"""


def pressed_at(module: str, *words: str, before: str = "", more: str = "") -> tuple[int, str]:
    """The exit code and the messages of a command."""
    argv = [sys.executable, "-c", before + PROGRAM.replace("{more}", more), module, *words]
    done = subprocess.run(argv, check=False, capture_output=True, text=True)
    return done.returncode, done.stderr


@pytest.mark.parametrize("module", ["click", "clusterddp.cli.main", "clusterddp.cli.output"])
def test_it_ends_the_command_without_a_word_while_that_is_imported(module: str) -> None:
    assert pressed_at(module, "--version") == (-signal.SIGINT, "")


def test_it_ends_the_command_with_its_own_code_from_then_on() -> None:
    assert pressed_at("clusterddp.cli.versions", "--version", "-v") == (EXIT_INTERRUPTED, "clusterddp: interrupted\n")


def test_it_ends_a_wait_of_the_main_thread_though_another_thread_takes_it() -> None:
    module = "clusterddp.cli.actions.hosts_action"
    assert pressed_at(module, "hosts", more=TAKEN_ELSEWHERE) == (EXIT_INTERRUPTED, "clusterddp: interrupted\n")


def test_it_stays_ignored_where_it_was() -> None:
    ignored = "import signal; signal.signal(signal.SIGINT, signal.SIG_IGN)"
    assert pressed_at("click", "--version", before=ignored) == (0, "")
