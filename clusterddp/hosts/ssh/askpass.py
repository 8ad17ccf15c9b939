"""Answers the prompts of an ``ssh`` program by the command's own way to ask: passphrases, passwords, second factors.

ssh starts a program for each prompt (SSH_ASKPASS), which passes it on through a FIFO and gets the answer by another, in
a folder of this user's alone: no answer stands in an argument or the environment.
"""

from __future__ import annotations

import contextlib
import os
import re
import select
import subprocess
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

from clusterddp.hosts.ssh.private_keys import PROMPT_LOCK
from clusterddp.text.printable import one_line

if TYPE_CHECKING:
    from typing_extensions import Self

    from clusterddp.hosts.ssh.private_keys import Ask

MAX_PROMPT = 1000  # bytes of a prompt; the rest is not read
_MAX_PROMPTS = 16  # in one login
_LOOK_INTERVAL = 0.05  # seconds between two looks whether ssh has ended
# ``none``: ssh only tells something, and waits for no answer. printf is the shell's own: the answer is no argument.
_PROGRAM = """#!/bin/sh
[ "$SSH_ASKPASS_PROMPT" = none ] && exit 0
cd "${0%/*}" || exit 1
printf '%s\\0' "$1" | head -c MAX > prompt
IFS= read -r answer < answer && printf '%s\\n' "$answer"
"""
_FOR_KEY = "Enter passphrase for key "  # ssh's words; the answer serves all hosts


def can_ask(program: str) -> bool:
    """Whether this ssh asks by a program, and marks what a server asks, so that it is not taken for ssh's own prompt.

    Versions before 8.5 do not.
    """
    said = subprocess.run([program, "-V"], stdin=subprocess.DEVNULL, capture_output=True, check=False).stderr
    found = re.match(rb"OpenSSH\D*(\d+)\.(\d+)", said)
    return found is not None and (int(found[1]), int(found[2])) >= (8, 5)


class Prompts:
    """A context manager: the prompts of one ssh's login. ``passphrases``: those given before, by their prompt."""

    def __init__(self, ask: Ask, passphrases: dict[str, str]) -> None:
        self._ask, self._passphrases = ask, passphrases
        self._open = contextlib.ExitStack()
        self._seen: set[str] = set()
        self._count = 0
        self._given_up = False
        self._folder = Path()
        self._prompt = self._answer = -1

    def __enter__(self) -> Self:
        self._folder = Path(self._open.enter_context(tempfile.TemporaryDirectory(prefix="clusterddp-")))
        program = self._folder / "askpass"
        program.write_text(_PROGRAM.replace("MAX", str(MAX_PROMPT)))
        program.chmod(0o700)
        self._prompt, self._answer = (self._fifo(name) for name in ("prompt", "answer"))
        return self

    def __exit__(self, *_: object) -> None:
        self._open.close()

    @property
    def environment(self) -> dict[str, str]:
        """What makes ssh ask here."""
        return {"SSH_ASKPASS": str(self._folder / "askpass"), "SSH_ASKPASS_REQUIRE": "force"}

    @property
    def asked(self) -> bool:
        """Whether there was any prompt."""
        return self._count > 0

    def wait(self, process: subprocess.Popen[bytes], timeout: float) -> bool:
        """Answer until ssh ends; return False if it has not in time, which the user's answers do not count in."""
        deadline = time.monotonic() + timeout
        poll = select.poll()
        poll.register(self._prompt, select.POLLIN)
        while process.poll() is None:
            if time.monotonic() > deadline or self._given_up or self._count > _MAX_PROMPTS:
                return False
            if poll.poll(_LOOK_INTERVAL * 1000):
                began = time.monotonic()
                self._answer_prompt()
                deadline += time.monotonic() - began
        return True

    def _answer_prompt(self) -> None:
        data = os.read(self._prompt, MAX_PROMPT + 1)
        self._count += 1
        prompt = one_line(data.rstrip(b"\0").decode(errors="replace"))
        with PROMPT_LOCK:
            known = "" if prompt in self._seen else self._passphrases.get(prompt, "")  # asked again: it was wrong
            answer = known or self._ask(prompt)
            if answer and prompt.startswith(_FOR_KEY):
                self._passphrases[prompt] = answer
        self._seen.add(prompt)
        self._given_up = not answer
        os.write(self._answer, answer.replace("\n", "").encode() + b"\n")

    def _fifo(self, name: str) -> int:
        """Make a FIFO, open for both ways, so that neither end waits for the other to open it."""
        path = self._folder / name
        os.mkfifo(path, 0o600)
        handle = os.open(path, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
        self._open.callback(os.close, handle)
        return handle
