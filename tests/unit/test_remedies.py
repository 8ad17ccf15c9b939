"""Every remedy of the source is typed by a test in the situation that prints it, or is listed with why it is not."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.remedies import Remedy, in_source, listed, texts, typed

if TYPE_CHECKING:
    from collections.abc import Iterable

REASONS = {
    "states": "it names what is wrong or what was done; there is nothing to type",
    "looks": "it names a program to look with, or what to look at; the rest is the reader's judgement",
    "machine": "its situation, or what mends it, is a machine's that no test has: a GPU, a card, a switch, a firmware",
    "administrator": "it is root's or the cluster administrator's to do",
    "job": "it is about the user's own program, model or data",
    "installs": "it installs a package from an index",
    "slurm": "its situation is a Slurm that is set up otherwise than the tests' own",
    "open": "it can be typed; no test does it yet",
}


def told(remedies: Iterable[Remedy]) -> list[str]:
    return sorted(f"{one.path}: {one.text}" for one in remedies)


def test_a_new_remedy_is_typed_by_a_test_or_listed_with_a_reason() -> None:
    assert told(in_source() - typed() - listed().keys()) == []


def test_a_remedy_that_is_typed_or_listed_is_in_the_source() -> None:
    assert told(typed() - texts()) == []
    assert told(listed().keys() - in_source()) == []


def test_a_remedy_that_is_typed_is_not_listed() -> None:
    assert told(listed().keys() & typed()) == []


def test_each_reason_is_a_known_one() -> None:
    assert set(listed().values()) <= REASONS.keys()


def test_the_remedies_of_the_source_are_found() -> None:
    """The rule by which they are found still finds those of every kind."""
    kinds = {
        Remedy("launch/preflight.py", "{}; or go on all the same: --skip {}"),
        Remedy("runs/choose.py", "`clusterddp runs --all` lists them"),
        Remedy("facts/network.py", "correct clusterddp_interface"),
        Remedy("remote/system/bootstrap.py", "set clusterddp_state to a shorter path"),
    }
    assert kinds <= in_source()
    assert len(in_source()) > 300
