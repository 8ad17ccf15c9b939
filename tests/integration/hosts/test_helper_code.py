"""The helper's code on a host: brought once, found by its digest, and what is done where it is damaged."""

from __future__ import annotations

import io
import sys
import zipfile
from typing import TYPE_CHECKING

import pytest

from clusterddp.errors import HelperError
from clusterddp.hosts.client import Host
from clusterddp.hosts.zipapp import COMMAND, PACKAGE, bundle
from clusterddp.remote.shared.code.code_archive import is_whole
from tests.integration.real_helper import Shell, entry, wait_for
from tests.pythons import interpreter

if TYPE_CHECKING:
    from pathlib import Path

    from clusterddp.hosts.ssh.pipes import ChildPipe
    from clusterddp.inventory import HostEntry

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="hosts are Linux")


class Counting(Shell):
    """A shell whose pipe counts what is sent."""

    sent = 0

    def open(self, entry: HostEntry, command: str = COMMAND) -> ChildPipe:
        pipe = super().open(entry, command)
        write = pipe.write

        def counted(data: bytes) -> None:
            self.sent += len(data)
            write(data)

        pipe.write = counted  # type: ignore[method-assign]
        return pipe


def damaged(data: bytes, place: int) -> bytes:
    """``data`` with one bit of another value."""
    return data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :]


def anothers(state: Path, python: str) -> HostEntry:
    """A host with another Python than ours."""
    return entry(state, ansible_python=python)


def kept(state: Path) -> list[Path]:
    """What it has made of the code for its own Python."""
    return list((state / "helper").glob("????????????????*-*.pyz"))


def finds_byte_code(state: Path, python: str) -> bool:
    """Whether a connection finds there all that it runs, so that it is sent no more than its first words."""
    shell = Counting("/bin/sh")
    with Host.open(anothers(state, python), shell) as host:
        assert host.call("runs", {"run": "", "hosts": ["here"]}) == []
    return shell.sent < 12 * 1024


def inside(zipapp: bytes, module: str) -> int:
    """A place in the byte code of a module."""
    found = zipfile.ZipFile(io.BytesIO(zipapp)).getinfo(f"{PACKAGE}/{module}.pyc")
    return found.header_offset + found.file_size // 2


def test_the_code_is_sent_once_and_mended_when_damaged(tmp_path: Path) -> None:
    def start() -> int:
        """How many bytes it takes."""
        shell = Counting("/bin/sh")
        Host.open(entry(tmp_path), shell).close()
        return shell.sent

    code = bundle()
    (cached,) = [tmp_path / "helper" / f"{code.digest}.pyz"]
    assert start() > len(code.packed)
    assert cached.read_bytes() == code.code
    assert cached.stat().st_mode & 0o777 == 0o600
    assert start() < 32 * 1024
    places = [code.index.offset, inside(code.code, "helper/loop")] if code.index else [0]
    for place in places:
        cached.write_bytes(damaged(code.code, place))
        assert start() > len(code.packed)
        assert cached.read_bytes() == code.code


def test_code_damaged_after_the_start_is_told_removed_and_sent_anew(tmp_path: Path) -> None:
    code = bundle()
    if code.index is None:
        pytest.skip("no byte code is kept here")
    cached = tmp_path / "helper" / f"{code.digest}.pyz"
    Host.open(entry(tmp_path), Shell("/bin/sh")).close()
    with Host.open(entry(tmp_path), Shell("/bin/sh")) as host:
        cached.write_bytes(damaged(code.code, inside(code.code, "probes/facts")))
        with pytest.raises(HelperError, match=r"pyz was damaged, and is removed: the next connection brings it anew"):
            host.call("facts", {})
    assert not cached.exists()
    with Host.open(entry(tmp_path), Shell("/bin/sh")) as host:
        assert host.call("clock")
    assert cached.read_bytes() == code.code


@pytest.mark.parametrize("version", ["3.8"])
def test_a_host_with_another_python_keeps_byte_code_of_its_own(tmp_path: Path, version: str) -> None:
    if bundle().index is None:
        pytest.skip("no byte code is kept here")
    python = interpreter(version)
    assert not finds_byte_code(tmp_path, python)
    (own,) = wait_for(lambda: kept(tmp_path), "the file")
    assert own.stat().st_mode & 0o777 == 0o600
    assert finds_byte_code(tmp_path, python)
    made = own.read_bytes()
    for wrong in (damaged(made, inside(made, "helper/loop")), made[:50]):
        own.write_bytes(wrong)
        assert not finds_byte_code(tmp_path, python)
        wait_for(lambda: own.exists() and is_whole(own.read_bytes()), "another file")
    assert finds_byte_code(tmp_path, python)
    for forbidden in (own, own.parent):  # somebody else may have written it
        forbidden.chmod(0o777)
        assert not finds_byte_code(tmp_path, python)
        own.chmod(0o600)
        assert finds_byte_code(tmp_path, python)
    with Host.open(anothers(tmp_path, python), Shell("/bin/sh")) as host:
        assert host.call("clean", {"hosts": ["here"], "project": "", "purge": True})["nothing_left"]
    assert not own.parent.exists()
