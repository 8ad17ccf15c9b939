"""JSON in files."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from clusterddp.remote.shared.schema.json_text import read_json

if TYPE_CHECKING:
    from pathlib import Path


def test_a_missing_file_is_none_and_a_forbidden_one_is_not(tmp_path: Path) -> None:
    assert read_json(str(tmp_path / "no" / "file")) is None
    with pytest.raises(IsADirectoryError):
        read_json(str(tmp_path))


@pytest.mark.parametrize("text", ["{", "", "[" * 100_000, "\0"], ids=range(4))
def test_a_file_that_is_no_json_is_a_value_error_whatever_is_in_it(tmp_path: Path, text: str) -> None:
    (tmp_path / "file").write_text(text)
    with pytest.raises(ValueError):  # noqa: PT011 - json's own words, or ours
        read_json(str(tmp_path / "file"))


def test_a_pipe_in_a_files_place_blocks_nobody(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "file")
    with pytest.raises(ValueError):  # noqa: PT011 - it reads as an empty file
        read_json(str(tmp_path / "file"))
