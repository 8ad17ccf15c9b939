"""What a command that ends badly has said, and shells to give it in."""

from __future__ import annotations

import shutil
import subprocess
from typing import TYPE_CHECKING, Any

import pytest

from tests.integration.cli import CLUSTERDDP, Done, User

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

# A root that may not pass over permissions, so that they mean something to it.
PLAIN = ("setpriv", "--bounding-set=-dac_override,-dac_read_search")


def one_line(done: Done, code: int, *holds: str) -> str:
    """The one line that says what is wrong; before it stands at most which cluster it is, and which code goes to it."""
    notes = [note for note in done.notes if not note.startswith(("cluster: ", "code "))]
    assert (done.code, len(notes), done.out) == (code, 1, ""), done.err
    assert all(text in notes[0] for text in holds), notes[0]
    return notes[0]


def shell(user: User, line: str) -> tuple[str, list[str]]:
    """A shell's line: its stdout, and what was said on stderr but for the cluster's line."""
    done = subprocess.run(
        ["bash", "-c", line],
        check=False,
        cwd=user.folder,
        env=user.env,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
    )
    return done.stdout, [said for said in done.stderr.splitlines() if "cluster: " not in said]


def under(user: User, prefix: Sequence[str], *argv: str) -> Done:
    """A command that another program starts."""
    if shutil.which(prefix[0]) is None:
        pytest.skip(f"{prefix[0]} (util-linux) is not installed")
    done = _run(user, [*prefix, CLUSTERDDP, *argv])
    return Done(code=done.returncode, out=done.stdout, err=done.stderr)


def by_plain(user: User, *argv: str) -> Done:
    """A command by somebody whom permissions stop."""
    return under(user, PLAIN, *argv)


def _run(user: User, argv: list[str]) -> subprocess.CompletedProcess[str]:
    where: Mapping[str, Any] = {"cwd": user.folder, "env": user.env, "stdin": subprocess.DEVNULL}
    return subprocess.run(argv, check=False, capture_output=True, text=True, **where)
