"""Wheels on their way to hosts."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import pytest

from clusterddp.environments import wheels as cache
from clusterddp.environments.sending import send_wheels
from clusterddp.environments.wheels import Wheel
from clusterddp.remote.environment import install_operations
from clusterddp.remote.helper.request import Request
from clusterddp.remote.shared.environment.environment_records import LacksRequest
from clusterddp.remote.shared.schema.record import to_fields
from clusterddp.remote.shared.wire.chunks import CHUNK, digest_of
from clusterddp.sync.transfer.progress_rate import Transfer
from clusterddp.sync.transfer.transfer_task import AUTO
from tests.unit.thread_host import ThreadHost

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

SIZES = {"small": 1000, "large": CHUNK + 1000}


@pytest.fixture
def wheel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Wheel]:
    monkeypatch.setattr(cache, "_cache", lambda: tmp_path / "cache")

    def make(name: str) -> Wheel:
        data = os.urandom(SIZES[name])
        made = Wheel(name=name, version="1", file=f"{name}.whl", sha256=digest_of(data), size=len(data))
        made.path.parent.mkdir(parents=True)
        made.path.write_bytes(data)
        return made

    return make


def lacking(host: ThreadHost, wheels: list[Wheel]) -> list[str]:
    asked = LacksRequest(wheels={one.sha256: one.size for one in wheels}, room=1)
    return install_operations.environment_lacks(Request(0, {"state": host.hello.state, **to_fields(asked)}, -1, -1))


def test_each_host_gets_the_wheels_that_it_lacks(tmp_path: Path, wheel: Callable[[str], Wheel]) -> None:
    hosts: Any = [ThreadHost.made(tmp_path, name) for name in ("gpu00", "gpu01")]
    wheels = [wheel("small"), wheel("large")]
    assert lacking(hosts[0], wheels) == [one.sha256 for one in wheels]
    transfer = Transfer("sending wheels", lambda _: None)
    send_wheels(hosts[:1], wheels[:1], "/nowhere", transfer, AUTO)
    assert lacking(hosts[0], wheels) == [wheels[1].sha256]
    for host in hosts:
        lacking(host, wheels)  # makes the folder
    send_wheels(hosts, wheels, "/nowhere", transfer, AUTO)
    for host in hosts:
        assert not lacking(host, wheels)
        assert (host.place / "state/environments/wheels" / wheels[1].sha256).read_bytes() == wheels[1].path.read_bytes()
    assert transfer.done == 2 * sum(SIZES.values())
    sent = [host.sent for host in hosts]
    bad = hosts[1].place / "state/environments/wheels" / wheels[0].sha256
    bad.write_bytes(bytes(SIZES["small"]))  # of the right size
    send_wheels(hosts, wheels[:1], "/nowhere", transfer, AUTO)
    assert bad.read_bytes() == wheels[0].path.read_bytes()
    assert hosts[0].sent - sent[0] < SIZES["small"] < hosts[1].sent - sent[1]
