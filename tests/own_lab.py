"""A lab for as long as a block runs; whoever asks for it is skipped where this machine cannot carry one."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

import pytest

from tests.lab import Lab, LabUnavailable

if TYPE_CHECKING:
    from collections.abc import Iterator


@contextlib.contextmanager
def own_lab(hosts: int, **variants: Any) -> Iterator[Lab]:
    """So many hosts, up; the variants are ``Lab``'s."""
    lab = Lab(hosts, **variants)
    try:
        lab.start()
    except LabUnavailable as reason:
        pytest.skip(f"lab: {reason}")
    try:
        yield lab
    finally:
        lab.stop()
