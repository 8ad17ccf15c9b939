"""Slurm for the tests of this folder: one login host with the controller, two hosts that compute."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from tests.lab import why_not
from tests.lab.slurm import Slurm, why_no_slurm
from tests.lab.slurm_accounts import why_no_accounts
from tests.own_lab import own_lab

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(scope="session")
def slurm() -> Iterator[Slurm]:
    """Shared by all tests of the session: use it, never break it."""
    yield from _slurm(3)


@pytest.fixture
def own_slurm() -> Iterator[Slurm]:
    """The test's own, to be broken."""
    yield from _slurm(3)


@pytest.fixture(scope="session")
def unshared_slurm() -> Iterator[Slurm]:
    """Shared by the session; every host has a home of its own."""
    yield from _slurm(3, shared_home=False)


@pytest.fixture(scope="session")
def one_way_slurm() -> Iterator[Slurm]:
    """Shared by the session; nodes see what the login host writes into the home, and keep their own writes."""
    for slurm in _slurm(3):
        slurm.keep_own_writes()
        yield slurm


@pytest.fixture
def own_slurm_with_memory() -> Iterator[Slurm]:
    """The test's own; a job that takes more memory than it asked for is ended."""
    yield from _slurm(3, memory=True)


@pytest.fixture(scope="session")
def slurm_with_accounts() -> Iterator[Slurm]:
    """Slurm with accounting, which forgets a job soon; limits that a test sets it takes back."""
    yield from _slurm(3, accounts=True, min_job_age=2)


def _slurm(hosts: int, *, shared_home: bool = True, **variants: Any) -> Iterator[Slurm]:
    reason = why_not() or why_no_slurm() or (why_no_accounts() if "accounts" in variants else None)
    if reason:
        pytest.skip(f"no Slurm here: {reason}")
    with own_lab(hosts, shared_home=shared_home) as lab:
        yield Slurm(lab, kill_wait=10, **variants).start()
