"""The doctor's command as a user gives it, and what it finds wrong."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tests.integration.cli import User

Named = tuple[str, str, tuple[str, ...], str]  # check, verdict, hosts, words of its message


def named(user: User, *words: str) -> tuple[int, list[Named]]:
    """The exit code, and what is wrong; each with a symptom and a remedy, unless it is unknown."""
    done = user.run("doctor", "--json", *words)
    found = [one for one in done.json["checks"] if one["verdict"] not in ("pass", "skipped")]
    for one in found:
        assert one["verdict"] == "unknown" or (one["symptom"] and one["fix"]), one
    return done.code, [(one["name"], one["verdict"], tuple(one["hosts"]), one["message"]) for one in found]
