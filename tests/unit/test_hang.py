"""A test that waits for ever fails, with its fixtures cleaned up: one such test once cost a whole run of the suite."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

TESTS = """
import os, subprocess
import pytest
from tests import conftest
from tests.conftest import pytest_runtest_call, pytest_runtest_setup, pytest_runtest_teardown
conftest.LONGEST = 0.2

@pytest.fixture
def lingers():
    yield
    print("cleaned up")
    os.read(os.pipe()[0], 1)

def test_waits_for_a_child():
    with subprocess.Popen(["sleep", "1000"]) as child:
        try:
            child.wait()
        finally:
            child.kill()

def test_waits_in_its_end(lingers):
    pass

def test_after():
    pass
"""


def test_a_test_that_waits_for_ever_fails_where_it_waits(tmp_path: Path) -> None:
    (tmp_path / "conftest.py").write_text(TESTS.split("@pytest.fixture", maxsplit=1)[0])
    (tmp_path / "test_waits.py").write_text(TESTS)
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    asked = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "--rootdir", str(tmp_path), str(tmp_path)]
    done = subprocess.run(asked, capture_output=True, text=True, env=environment, timeout=60, cwd=tmp_path, check=False)
    assert "1 failed, 2 passed, 1 error" in done.stdout
    assert done.stdout.count("this had not ended after 0.2 s") >= 2
    assert "child.wait()" in done.stdout
    assert "cleaned up" in done.stdout


LEAVES_A_THREAD = """
import threading

def test_leaves_a_thread():
    threading.Thread(target=threading.Event().wait, name="left").start()
"""


def test_a_thread_that_a_test_has_left_does_not_keep_the_run_from_its_end(tmp_path: Path) -> None:
    hook = "from tests import conftest\nfrom tests.conftest import pytest_unconfigure\nconftest.LONGEST = 3\n"
    (tmp_path / "conftest.py").write_text(hook)
    (tmp_path / "test_leaves.py").write_text(LEAVES_A_THREAD)
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    asked = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "--rootdir", str(tmp_path), str(tmp_path)]
    done = subprocess.run(asked, capture_output=True, text=True, env=environment, timeout=60, cwd=tmp_path, check=False)
    assert "1 passed" in done.stdout
    assert done.returncode == 1
    assert "Timeout" in done.stderr
    assert "in wait" in done.stderr
