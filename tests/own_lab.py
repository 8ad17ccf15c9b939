"""A lab for as long as a block runs; whoever asks for it is skipped where this machine cannot carry one.

Importing torch is most of what a new host costs, so a host of a later lab knows from its first boot what torch said
on one of an earlier lab of the session, as a host knows it that was used before.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

import pytest

from tests.lab import Lab, LabUnavailable

if TYPE_CHECKING:
    from collections.abc import Iterator

FACTS = ".clusterddp/facts"
_told: dict[str, str] = {}  # what hosts have kept in their facts folders: a file's name is a digest of all it rests on


@contextlib.contextmanager
def own_lab(hosts: int, **variants: Any) -> Iterator[Lab]:
    """So many hosts, up; the variants are ``Lab``'s."""
    lab = Lab(hosts, home_files=dict(_told), **variants)
    try:
        lab.start()
    except LabUnavailable as reason:
        pytest.skip(f"lab: {reason}")
    try:
        yield lab
        for path in lab.folder.glob(f"**/{FACTS}/*.json"):
            _told[f"{FACTS}/{path.name}"] = path.read_text()
    finally:
        lab.stop()
