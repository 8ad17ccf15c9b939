"""Ctrl-C while the command is still being imported, while its main thread waits for a lock, and at a prompt."""

from __future__ import annotations

import contextlib
import os
import resource
import signal
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from clusterddp.remote.shared.processes.exit_codes import EXIT_INTERRUPTED
from tests.integration.cli import Live

if TYPE_CHECKING:
    from pathlib import Path

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

# At each prompt comes Ctrl-C, before the wait for the line has begun or after it.
PROMPTS = """
import signal
import readline
from clusterddp.cli.interrupts import waking_main_thread
signal.signal(signal.SIGINT, signal.default_int_handler)
with waking_main_thread():
    for number in range(40):
        try:
            input(f"prompt {number}: ")
        except KeyboardInterrupt:
            print("given up")
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


def test_it_gives_up_the_line_at_each_prompt(tmp_path: Path) -> None:
    argv = [sys.executable, "-c", PROMPTS]
    with contextlib.closing(Live(argv, tmp_path, os.environ, terminal=True)) as terminal:
        for number in range(40):
            terminal.wait_for(": ", times=number + 1)
            terminal.key("\x03")
        done = terminal.end()
    assert (done.code, done.out.count("given up")) == (0, 40), done.out


@pytest.mark.skipif(resource.getrlimit(resource.RLIMIT_NOFILE)[1] < 2048, reason="fewer descriptors are allowed here")
def test_it_ends_that_wait_with_many_descriptors_open() -> None:
    module = "clusterddp.cli.actions.hosts_action"
    many = "import os, resource; resource.setrlimit(resource.RLIMIT_NOFILE, (2048, 2048))\n"
    many += "for _ in range(1100): os.dup(0)\n"
    pressed = pressed_at(module, "hosts", before=many, more=TAKEN_ELSEWHERE)
    assert pressed == (EXIT_INTERRUPTED, "clusterddp: interrupted\n")


def test_it_stays_ignored_where_it_was() -> None:
    ignored = "import signal; signal.signal(signal.SIGINT, signal.SIG_IGN)"
    assert pressed_at("click", "--version", before=ignored) == (0, "")
