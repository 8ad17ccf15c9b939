"""Numbers with what they count, and that all messages count by the one function."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import clusterddp
from clusterddp.remote.shared.text.counted import counted

# Nouns of which a message may count a single one: `{…} hosts` would be `1 hosts` then.
NOUNS = "ranks|hosts|nodes|files|workers|runs|processes|GPUs|cores|days|environments|rounds|wheels|checks"


@pytest.mark.parametrize(
    ("number", "words", "text"),
    [
        (0, ("rank",), "0 ranks"),
        (1, ("rank",), "1 rank"),
        (2, ("rank",), "2 ranks"),
        (1, ("process", "processes"), "1 process"),
        (3, ("process", "processes"), "3 processes"),
    ],
)
def test_one_is_counted_in_the_singular(number: int, words: tuple[str, ...], text: str) -> None:
    assert counted(number, *words) == text


def test_no_message_writes_its_plural_by_itself() -> None:
    found = []
    for path in Path(clusterddp.__file__).parent.rglob("*.py"):
        text = path.read_text(encoding="utf-8")
        found += [f"{path.name}: {own}" for own in re.findall(r"'' if [^{}]*== 1 else 'e?s'", text)]
        found += [
            f"{path.name}: {own}"
            for own in re.findall(rf"f[\"'][^\"'\n]*\{{len\([^{{}}]+\)\}} (?:{NOUNS})\b[^\n]*", text)
            if "more than" not in own  # a limit, far above one
        ]
    assert not found
