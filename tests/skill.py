"""The command lines that SKILL.md gives to an agent."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

SKILL = Path(__file__).parents[1] / "SKILL.md"
_SPAN = re.compile(r"`((?:[^`\\]|\\.)+)`")
_LINE = re.compile(r"(?:.* \| )?clusterddp [a-zA-Z]")


def spans() -> list[str]:
    """Return every piece of inline code in SKILL.md."""
    return [span.replace(r"\|", "|") for span in _SPAN.findall(SKILL.read_text(encoding="utf-8"))]


def lines() -> list[str]:
    """Return every complete command line in SKILL.md."""
    return list(dict.fromkeys(span for span in spans() if _LINE.match(span)))


def filled(line: str, *options: str, **values: str) -> str:
    """Fill in the placeholders (in capitals) of a command line of SKILL.md; add options that it names."""
    assert line in lines(), f"SKILL.md has no such line: {line}"
    assert {word for word in options if word.startswith("-")} <= {span.split()[0] for span in spans()}
    for word, value in values.items():
        line, found = re.subn(rf"\b{word}\b…?", lambda _, value=value: value, line)  # type: ignore[misc]
        assert found, f"{word} does not stand in {line}"
    first, command, rest = re.split(r"(clusterddp \w+)", line, maxsplit=1)
    filled = f"{first}{command} {shlex.join(options)}{rest}" if options else line
    assert not re.search(r"\b[A-Z]{2,}\b", first + command + rest), filled
    return filled
