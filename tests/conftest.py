"""Fixtures every test may use: labs of real machines."""

from __future__ import annotations

import atexit
import contextlib
import faulthandler
import os
import shutil
import signal
import sys
import tempfile
from typing import TYPE_CHECKING, Any, Protocol

import pytest
from hypothesis import settings

from tests import login, order, pythons
from tests.chaos.rounds import SEED
from tests.lab import Lab, why_not
from tests.own_lab import KEPT, own_lab

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator
    from types import FrameType

LONGEST = 300  # seconds for each of a test's setup, call and teardown; the slowest takes 100 on a busy machine


class MakeLab(Protocol):
    """Start a lab of one's own; it is removed when the test ends. Arguments as of `Lab`."""

    def __call__(self, hosts: int = 2, **variants: Any) -> Lab: ...


def pytest_configure() -> None:
    """The tests' own process, and each of pytest-xdist's, begins as at a login."""
    login.begin()
    # Whatever a test makes known of this user's consent is none of who runs the tests.
    os.environ["XDG_STATE_HOME"] = state = tempfile.mkdtemp(prefix="clusterddp-state-")
    atexit.register(shutil.rmtree, state, ignore_errors=True)
    if KEPT not in os.environ:  # else this is one of pytest-xdist's processes
        os.environ[KEPT] = kept = tempfile.mkdtemp(prefix="clusterddp-facts-")
        atexit.register(shutil.rmtree, kept, ignore_errors=True)
    examples = int(os.environ.get("CLUSTERDDP_FUZZ_EXAMPLES", "100"))
    settings.register_profile("patient", deadline=None, max_examples=examples)  # a busy machine is no failure
    settings.load_profile("patient")


def _too_long(_number: int, _frame: FrameType | None) -> None:
    """SIGALRM handler: fail the running test at the line it is on; its fixtures still clean up."""
    pytest.fail(f"this had not ended after {LONGEST} s")


@contextlib.contextmanager
def _ended_in_time() -> Iterator[None]:
    """Fail what takes longer than LONGEST seconds, so that one hanging test does not stop the whole test run."""
    before = signal.signal(signal.SIGALRM, _too_long)
    signal.setitimer(signal.ITIMER_REAL, LONGEST, LONGEST / 10)  # and again, where something swallowed the failure
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_setup() -> Generator[None, None, None]:
    """Apply the time limit to the setup of a test's fixtures."""
    with _ended_in_time():
        return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call() -> Generator[None, None, None]:
    """Apply the time limit to the test function."""
    with _ended_in_time():
        return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown() -> Generator[None, None, None]:
    """Apply the time limit to the teardown of a test's fixtures."""
    with _ended_in_time():
        return (yield)


def pytest_unconfigure() -> None:
    """Limit how long the end of this process takes, which waits for threads that tests have left."""
    faulthandler.dump_traceback_later(LONGEST, exit=True, file=sys.__stderr__ or sys.stderr)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Say in one line how many tests were skipped for want of another Python."""
    skipped = [report.longrepr for report in terminalreporter.stats.get("skipped", ())]
    line = pythons.missing_line([str(where[-1]) for where in skipped if isinstance(where, tuple)])
    if line:
        terminalreporter.write_line(line)


def pytest_report_header() -> str:
    """How the chaos suite's chances are repeated."""
    return f"chaos: CLUSTERDDP_CHAOS_SEED={SEED}"


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark every test that uses a lab, so that `-m 'not lab'` runs the rest."""
    if hasattr(config, "workerinput"):  # one of pytest-xdist's processes
        order.longest_first(items)
    for item in items:
        if any(name in {"lab", "make_lab", "three"} or "slurm" in name for name in getattr(item, "fixturenames", ())):
            item.add_marker(pytest.mark.lab)


@pytest.fixture(scope="session")
def lab() -> Iterator[Lab]:
    """Four healthy hosts, shared by all tests of the session: use them, never break them."""
    with own_lab(4) as shared:
        yield shared


@pytest.fixture
def make_lab() -> Iterator[MakeLab]:
    """A factory of labs that the test may break."""
    reason = why_not()
    if reason:
        pytest.skip(f"lab: {reason}")
    with contextlib.ExitStack() as made:

        def make(hosts: int = 2, **variants: Any) -> Lab:
            return made.enter_context(own_lab(hosts, **variants))

        yield make
