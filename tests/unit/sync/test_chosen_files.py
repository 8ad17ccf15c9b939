"""Where the files of a push go, by its words."""

from __future__ import annotations

import pytest

from clusterddp.sync.chosen_files import Destination, destination, with_slash


@pytest.mark.parametrize(
    ("dest", "folder", "prefix"),
    [
        ("~/x.py", "~", "x.py"), ("~", "~/", "ok.py"), ("~/", "~/", "ok.py"), (".", "./", "ok.py"),
        ("/x.py", "/", "x.py"), ("x.py", ".", "x.py"), ("d/x.py", "d", "x.py"), ("d/.", "d/./", "ok.py"),
    ],
)  # fmt: skip
def test_a_single_file_becomes_the_destination_or_goes_below_a_folder(dest: str, folder: str, prefix: str) -> None:
    assert destination([("ok.py", False)], with_slash(dest)) == Destination(folder=folder, prefixes=(prefix,))
