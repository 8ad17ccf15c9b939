"""The scripts of benchmarks/hangs: what each says of itself in its docstring, and whether an answer agrees with it.

    class: missing | before-first     the classes that are right: gloo leaves the same evidence for all of them
    ranks: 0 | 1 2                    the sets of ranks that are right
    states: hung waiting              the states that are right (default: hung)
    ready: 1                          how many ranks print "ready" just before the script hangs (default: all)
    also: stuck_module.py:2           a right line outside the script
    mounts: /tmp/dead                 folders that are to be mounts of a server that never answers (a lab's hosts alone)

The right lines are those with the comment ``# HERE``.
"""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).with_name("hangs")
WORLD = 3  # ranks
CLEAN, FAILURE = "clean_", "fails_"  # how names begin
RIGHT, UNDECIDED, WRONG_NAME, FALSE_HUNG = "right", "undecided", "wrong name", "false hung"
_PLACE = re.compile(r"([^/\s]+:\d+)(?: |$)")


@dataclass(frozen=True, kw_only=True)
class HangScript:
    """One script and what is right about it."""

    name: str
    about: str
    classes: tuple[str, ...]
    ranks: tuple[tuple[int, ...], ...]
    states: tuple[str, ...]
    ready: int
    mounts: tuple[str, ...]
    places: frozenset[str]

    @property
    def clean(self) -> bool:
        """Whether it only pauses."""
        return self.name.startswith(CLEAN)

    @property
    def fails(self) -> bool:
        """Whether the script is to end by a failure, rather than to hang."""
        return self.name.startswith(FAILURE)

    @property
    def expected(self) -> str:
        """For people, in a cell of the table."""
        if self.clean:
            return "not hung"
        places = ", ".join(sorted(place.partition(":")[2] for place in self.places))
        return f"{'/'.join(self.classes)} of {' or '.join(map(words, self.ranks))}, line {places}"

    def outcome(self, said: dict[str, Any]) -> str:
        """Whether what ``why --json`` said is right, or what is wrong about it."""
        if self.clean:
            return FALSE_HUNG if said["state"] == "hung" else RIGHT
        if said["state"] == "undecided" or (said["class"] == "undecided" and not said["ranks"]):
            return UNDECIDED
        if said["ranks"] and tuple(said["ranks"]) not in self.ranks:
            return WRONG_NAME
        if said["state"] not in self.states:
            return f"says {said['state']}"
        if not self.fails and said["class"] not in self.classes:
            return "wrong class"
        if not said["ranks"]:
            return UNDECIDED
        return RIGHT if self.fails or place(said["where"]) in self.places else "wrong line"


def words(ranks: tuple[int, ...] | list[int]) -> str:
    """Ranks in a cell of the table."""
    return "+".join(map(str, ranks)) or "nobody"


def place(where: str | None) -> str:
    """``FILE:LINE`` of what ``why`` and ``status`` say as ``FILE:LINE in FUNCTION``."""
    found = _PLACE.search(where or "")
    return found[1] if found else ""


def read(path: Path) -> HangScript:
    """Read a script's docstring and its marks."""
    text = path.read_text()
    about, _, rest = (ast.get_docstring(ast.parse(text)) or "").partition("\n\n")
    told = dict(line.split(": ", 1) for line in rest.splitlines())
    marked = {f"{path.name}:{number}" for number, line in enumerate(text.splitlines(), 1) if line.endswith("# HERE")}
    return HangScript(
        name=path.stem,
        about=about,
        classes=tuple(told.get("class", "").split(" | ")),
        ranks=tuple(tuple(map(int, ranks.split())) for ranks in told.get("ranks", "").split(" | ")),
        states=tuple(told.get("states", "failed" if path.stem.startswith(FAILURE) else "hung").split()),
        ready=int(told.get("ready", WORLD)),
        mounts=tuple(told.get("mounts", "").split()),
        places=frozenset(marked | ({told["also"]} if "also" in told else set())),
    )


def find(patterns: list[str]) -> list[HangScript]:
    """The scripts whose name begins with one of these words; all without words. Those that hang are first."""
    paths = [path for path in sorted(FOLDER.glob("*.py")) if path.stem.startswith(tuple(patterns or [""]))]
    return sorted(map(read, paths), key=lambda script: (script.clean, script.fails))
