"""Ctrl-C while the command is still being imported."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest

from clusterddp.remote.shared.processes.exit_codes import EXIT_INTERRUPTED

# Ctrl-C comes as a module is about to be imported.
PROGRAM = """
import os, signal, sys
module, *sys.argv[1:] = sys.argv[1:]
class Presses:
    def find_spec(self, name, *_):
        if name == module:
            os.kill(os.getpid(), signal.SIGINT)
sys.meta_path.insert(0, Presses())
from clusterddp.cli.entry import main
main()
"""


def pressed_at(module: str, *words: str, before: str = "") -> tuple[int, str]:
    """The exit code and the messages of a command."""
    argv = [sys.executable, "-c", before + PROGRAM, module, *words]
    done = subprocess.run(argv, check=False, capture_output=True, text=True)
    return done.returncode, done.stderr


@pytest.mark.parametrize("module", ["click", "clusterddp.cli.main", "clusterddp.cli.output"])
def test_it_ends_the_command_without_a_word_while_that_is_imported(module: str) -> None:
    assert pressed_at(module, "--version") == (-signal.SIGINT, "")


def test_it_ends_the_command_with_its_own_code_from_then_on() -> None:
    assert pressed_at("clusterddp.cli.versions", "--version", "-v") == (EXIT_INTERRUPTED, "clusterddp: interrupted\n")


def test_it_stays_ignored_where_it_was() -> None:
    ignored = "import signal; signal.signal(signal.SIGINT, signal.SIG_IGN)"
    assert pressed_at("click", "--version", before=ignored) == (0, "")
