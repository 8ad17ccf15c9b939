"""What a worker of a warm server can run; tests/integration/test_warm_transparency.py runs it."""

from __future__ import annotations

import sys
import zipfile
from typing import TYPE_CHECKING

import pytest

from clusterddp.remote.fork_server.fork_checks import RefusedError
from clusterddp.remote.preload.run_script import NAME, run_later

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize("kind", ["folder", "archive", "byte code"])
def test_a_script_that_is_no_file_of_text_is_refused_and_nothing_is_changed(tmp_path: Path, kind: str) -> None:
    script = tmp_path / "script"
    if kind == "folder":
        script.mkdir()
    elif kind == "archive":
        with zipfile.ZipFile(script, "w") as archive:
            archive.writestr("__main__.py", "print(1)")
    else:
        script.write_bytes(b"\xa7\r\r\n\0\0\0\0")
    before = list(sys.argv), list(sys.orig_argv)
    with pytest.raises(RefusedError, match=r"script is no file of Python's source$"):
        run_later([sys.executable, "-u", str(script)])
    assert (sys.argv, sys.orig_argv) == before
    assert NAME not in vars(sys.modules["__main__"])
