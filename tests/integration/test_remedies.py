"""What messages tell a user to type is typed as it was printed, and does what they promise; no hosts are needed.

Not here: remedies that need hosts (test_remedies_on_hosts.py), of locks (tests/unit/environments/test_lock.py).
"""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

import pytest

from clusterddp.errors import UsageError
from clusterddp.launch.options import run_options
from tests.integration.cli import User
from tests.integration.complaint import one_line

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def user(tmp_path: Path) -> User:
    return User(tmp_path)


@pytest.mark.parametrize(
    ("given", "meant"),
    [("--lr 0.1", ("--lr", "0.1")), ("--name 'a b'", ("--name", "a b")), ("it's", ("it's",)), (5, ("5",))],
)
def test_arguments_given_as_one_text_are_told_as_the_list_they_mean(given: object, meant: tuple[str, ...]) -> None:
    with pytest.raises(UsageError) as error:
        run_options("train.py", given, {})  # type: ignore[arg-type]
    written = ast.literal_eval(error.value.remedy.removeprefix("write "))
    assert run_options("train.py", written, {}).args == meant


def test_only_an_up_that_has_succeeded_says_that_the_inventory_is_remembered(user: User) -> None:
    pytest.importorskip("ansible", reason="Ansible reads this kind of inventory")
    user.write("hosts.ini", "[gpu]\nno-such-host.invalid\n")
    done = user.run("up", "hosts.ini")
    assert (done.code, "remembered" in done.err) == (1, False), done.err
    assert "what it says stands in " in done.err
    one_line(user.run("run", "--limit", "gpu", "train.py"), 125)
