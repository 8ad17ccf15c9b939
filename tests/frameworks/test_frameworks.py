"""What people train with comes out forked and warm as it does started plainly: results, exit code, nothing left.

Two lab hosts with real Lightning, accelerate, transformers' Trainer, Inductor and setproctitle, on the interpreter that
CLUSTERDDP_FRAMEWORKS names (`make test-frameworks` makes it); without it all of this is skipped.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.integration.cli import Done, User, wait_until_nothing_is_left
from tests.integration.fork_server.test_fork_server import events
from tests.integration.preload.test_warm import warm
from tests.lab.system import wait_until
from tests.own_lab import own_lab

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.lab import Lab

PYTHON = os.environ.get("CLUSTERDDP_FRAMEWORKS", "")
if not PYTHON:
    pytest.skip("only in make test-frameworks", allow_module_level=True)

pytestmark = pytest.mark.torch
SCRIPTS = Path(__file__).parent / "scripts"
HOSTS = 2


@pytest.fixture(scope="module")
def lab() -> Iterator[Lab]:
    """Two hosts with the frameworks."""
    with own_lab(HOSTS, variables={"clusterddp_python": PYTHON, "clusterddp_fork_server": True}) as made:
        yield made


@pytest.fixture
def user(lab: Lab, tmp_path: Path) -> User:
    """A user with all the scripts."""
    made = User(tmp_path)
    for script in SCRIPTS.glob("*.py"):
        shutil.copy(script, made.folder)
    lab.write_inventory(made.folder / "inventory.yaml")
    made.env["CLUSTERDDP_INVENTORY"] = "inventory.yaml"
    return made


def run(lab: Lab, user: User, *words: str) -> Done:
    """A run that succeeds and leaves nothing."""
    done = user.run("run", "-v", *words)
    if done.code:
        pytest.fail(f"code {done.code}: {done.out[-4000:]}{done.err[-2000:]}", pytrace=False)
    wait_until_nothing_is_left(lab.hosts, done.run)
    return done


def results(done: Done) -> list[str]:
    """What each rank says in the end, in their order."""
    found = sorted(line.text for line in done.workers if line.text.startswith("result "))
    assert len(found) == HOSTS, done.out[-3000:]
    return found


def assert_forked(lab: Lab, done: Done) -> None:
    """Every agent and worker was."""
    for host in lab.hosts:
        told = events(host, done.run)
        assert {one["forked"] for one in told if "forked" in one} == {True}, done.err
        assert not [one for one in told if one["event"] == "not_forked"], done.err


def from_warm(lab: Lab, user: User, *words: str) -> Done:
    """A run that every host begins from its warm server."""
    for host in lab.hosts:
        wait_until("a warm server", lambda host=host: warm(host), 120)  # type: ignore[misc]
    done = run(lab, user, *words)
    assert_forked(lab, done)
    for host in lab.hosts:
        assert [one for one in events(host, done.run) if one["event"] == "from_warm_server"], done.err
    return done


@pytest.mark.parametrize("script", sorted(path.name for path in SCRIPTS.glob("*.py")))
def test_results_are_those_of_a_plain_start(lab: Lab, user: User, script: str) -> None:
    plain = results(run(lab, user, "--no-fork-server", script))
    assert user.run("down", "--yes").code == 0
    cold = run(lab, user, script)
    assert_forked(lab, cold)
    assert results(cold) == plain
    assert results(from_warm(lab, user, script)) == plain


@pytest.mark.parametrize("name", ["test_ops", "test_sync"])  # test_script needs a folder that hosts share
def test_accelerates_own_distributed_tests_pass(lab: Lab, user: User, name: str) -> None:
    words = ("--env", "ACCELERATE_USE_CPU=true", "-m", f"accelerate.test_utils.scripts.{name}")
    done = run(lab, user, *words)
    assert_forked(lab, done)
