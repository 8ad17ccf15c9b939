"""What a host tells the doctor of itself: read from this machine, and from text."""

from __future__ import annotations

import contextlib
import os
import pwd
import resource
import socket
import threading
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clusterddp.errors import HelperError
from clusterddp.facts.read_facts import read_answer
from clusterddp.remote.probes import health
from clusterddp.remote.shared.probes.health_records import Health
from clusterddp.remote.system import procfs
from tests.unit.operation import run_operation

if TYPE_CHECKING:
    from pathlib import Path


def asked(tmp_path: Path, **more: Any) -> dict[str, Any]:
    args = {"state": str(tmp_path), "workdir": str(tmp_path / "not" / "yet"), "names": [], "ports": [1, 2], "pids": []}
    found: dict[str, Any] = run_operation(health.health, {**args, **more})
    return found


def test_this_machine_tells_its_health(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        told = asked(tmp_path, names=["localhost"], ports=[port, port], pids=[os.getpid()])
    found = read_answer(Health, "here", told)
    assert found.taken == (port,)
    assert "127.0.0.1" in found.names["localhost"].addresses
    assert found.owners[os.getpid()].user == pwd.getpwuid(os.getuid()).pw_name
    assert found.folders["workdir"].path == str(tmp_path / "not" / "yet")
    assert found.folders["workdir"].free_bytes == pytest.approx(found.folders["state"].free_bytes, rel=0.1)
    assert found.folders["workdir"].writable
    assert set(found.limits) == {"nofile", "memlock", "nproc"}
    assert found.available_bytes
    assert {key: found.writes[key].error for key in found.writes} == {"state": None, "workdir": None}
    assert found.login is None
    assert found.cgroup


def test_a_login_is_tried_only_where_that_is_asked_for(tmp_path: Path) -> None:
    assert read_answer(Health, "here", asked(tmp_path, login=True)).login


def test_a_name_that_is_nobodys_has_an_error() -> None:
    assert health.look_up("no-such-host.invalid").error
    assert health.look_up("x" * 300 + ".invalid").error
    assert health.look_up("x..y").addresses == ()


def test_who_hangs_is_left_behind_and_the_others_answer() -> None:
    never = threading.Event()
    try:
        found = health.ask_all({"hangs": never.wait, "answers": lambda: 7}, 0.2)
    finally:
        never.set()
    assert found == {"answers": 7}


def test_a_process_that_is_gone_has_no_owner() -> None:
    assert health.owner(1 << 30) is None


def test_memory_that_nobody_tells_is_not_known(tmp_path: Path) -> None:
    assert procfs.available_bytes(str(tmp_path / "none")) is None
    (tmp_path / "meminfo").write_text("MemTotal: 8 kB\nMemAvailable:    5 kB\n")
    assert procfs.available_bytes(str(tmp_path / "meminfo")) == 5 * 1024


FIELDS = [
    *("limits", "folders", "names", "owners", "taken", "infiniband", "hcas"),
    *("code", "writes", "paths", "locks", "login", "cgroup"),
]
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)


@given(field=st.sampled_from(FIELDS), value=JSON)
def test_damaged_health_is_the_hosts_error_or_health(field: str, value: Any) -> None:
    told: dict[str, Any] = {
        "limits": {},
        "available_bytes": None,
        "infiniband": False,
        "hcas": [],
        "taken": [],
        "folders": {},
        "names": {},
        "writes": {},
        "paths": {},
        "locks": {},
        "login": {"python": None, "same": False, "error": None},
        "cgroup": {},
    }
    with contextlib.suppress(HelperError):  # whatever else is raised fails the test
        assert read_answer(Health, "gpu01", {**told, "owners": {}, field: value})


@pytest.mark.parametrize(("mask", "unlimited"), [("000001ffffffffff", True), ("00000000a80425fb", False), ("", False)])
def test_locked_memory_has_no_limit_for_who_may_lock_all(
    monkeypatch: pytest.MonkeyPatch, mask: str, *, unlimited: bool
) -> None:
    monkeypatch.setattr(health, "status", lambda _: {"CapEff": mask} if mask else {})
    monkeypatch.setattr(resource, "getrlimit", lambda _: (65536, 65536))
    limits = health.limits()
    assert limits["memlock"] == ((None, None) if unlimited else (65536, 65536))
    assert limits["nofile"] == (65536, 65536)
