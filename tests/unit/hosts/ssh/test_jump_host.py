"""A jump host is closed while threads wait for it."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import pytest

from clusterddp.errors import UnreachableError
from clusterddp.hosts.ssh.connector import _JumpHost
from clusterddp.hosts.ssh.private_keys import Credentials


def test_a_jump_host_is_closed_although_its_login_waits_for_the_user() -> None:
    asked, answered, opened, closed = (threading.Event() for _ in range(4))

    def login(_credentials: Credentials) -> Any:
        assert not opened.is_set()  # nobody logs in after the end
        asked.set()
        answered.wait(10)
        opened.set()
        return SimpleNamespace(close=closed.set, transport=SimpleNamespace(is_active=lambda: True))

    jump = _JumpHost(login, Credentials())

    def reach(host: str) -> None:
        with jump.opening(host):
            pytest.fail("the connection is used after its end")

    with ThreadPoolExecutor(3) as pool:
        first = pool.submit(reach, "gpu01")
        assert asked.wait(10)
        second = pool.submit(reach, "gpu02")
        pool.submit(jump.close).result(5)
        answered.set()
        for reached in (first, second):
            with pytest.raises(UnreachableError, match="the command is ending"):
                reached.result(10)
    assert closed.is_set()
