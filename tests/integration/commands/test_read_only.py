"""The helper where its state folder is on a read-only file system: one answer to the operator, and what it can do."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

import pytest

from clusterddp.errors import HelperError
from clusterddp.hosts.client import Host
from tests.integration.real_helper import Shell, entry

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.skipif(
    not sys.platform.startswith("linux") or os.getuid() != 0, reason="mounts need root on Linux"
)
MOUNTS = 'mount --bind "$0" "$0" && mount -o remount,bind,ro "$0" && exec /bin/sh "$@"'


def read_only(folder: Path) -> Shell:
    """A shell to which a folder is on a read-only file system."""
    return Shell("unshare", "--mount", "/bin/sh", "-c", MOUNTS, str(folder))


def test_a_helper_runs_from_a_folder_that_has_become_read_only(tmp_path: Path) -> None:
    Host.open(entry(tmp_path), Shell("/bin/sh")).close()
    with Host.open(entry(tmp_path), read_only(tmp_path)) as host:
        assert host.call("runs", {"run": "", "hosts": ["here"]}) == []


def test_a_folder_that_cannot_keep_the_helper_is_named_with_the_reason(tmp_path: Path) -> None:
    (tmp_path / "helper").mkdir(mode=0o700)
    with pytest.raises(HelperError, match=rf"cannot write {tmp_path}/helper: Read-only file system; have it mounted"):
        Host.open(entry(tmp_path), read_only(tmp_path))
