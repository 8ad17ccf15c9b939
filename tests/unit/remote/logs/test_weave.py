"""Many lines of two files at once: exactly those that marks part and that are whole."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from clusterddp.remote.logs.output_files import LogFile
from clusterddp.remote.logs.weave import Woven, weave
from clusterddp.remote.shared.logs.log_frames import MAX_PIECES
from clusterddp.remote.shared.wire.frames import MAX_BODY

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

Mark = tuple[int, int]


@pytest.fixture
def files(tmp_path: Path) -> tuple[LogFile, LogFile]:
    return LogFile(str(tmp_path), "0.0.out"), LogFile(str(tmp_path), "0.0.err")


def split(woven: Woven | None) -> list[tuple[str, int, bytes]]:
    """(stream, offset, bytes) of each piece."""
    return [(file.stream, chunk.offset, chunk.body) for file, chunk in woven.split()] if woven else []


@pytest.mark.parametrize(
    ("marks", "expected"),
    [
        ([(2, 0), (2, 2), (4, 2)], ["out a\n", "err x\n", "out b\n"]),
        ([(0, 2), (2, 2), (4, 2), (4, 4)], ["err x\n", "out a\nb\n", "err y\n"]),
        ([(2, 0), (2, 1), (4, 2)], []),  # the second piece ends within a line
        ([(2, 0), (2, 2), (4, 4)], ["out a\n", "err x\n"]),  # the last has bytes of both
        ([(2, 0), (2, 2), (8, 2)], ["out a\n", "err x\n"]),  # the last is longer than what is there
        ([(2, 0), (4, 0)], []),  # one stream
        ([(0, 0), (2, 0), (1, 0), (2, 2)], ["out a\n", "err x\n"]),  # marks that say nothing new
        ([], []),
    ],
)
def test_pieces_are_taken_up_to_the_first_that_is_not_whole(
    files: tuple[LogFile, LogFile], marks: list[Mark], expected: list[str]
) -> None:
    woven = weave(files, (b"a\nb\n", b"x\ny\n"), marks, 7)
    assert [f"{stream} {piece.decode()}" for stream, _, piece in split(woven)] == expected
    taken = {stream: sum(len(piece) for of, _, piece in split(woven) if of == stream) for stream in ("out", "err")}
    assert [file.pos for file in files] == [taken["out"], taken["err"]]
    if woven:
        assert dict(zip([file.stream for file in woven.files], woven.next, strict=True)) == taken


def test_a_redraw_goes_by_itself(files: tuple[LogFile, LogFile]) -> None:
    woven = weave(files, (b"a\nb\n", b"x\n1%\r2%\n"), [(2, 0), (2, 2), (4, 2), (4, 8)], None)
    assert [piece for _, _, piece in split(woven)] == [b"a\n", b"x\n", b"b\n"]


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(sizes=st.lists(st.integers(1, MAX_BODY), max_size=8), count=st.integers(1, MAX_PIECES + 3))
def test_what_is_taken_fits_into_a_frame(tmp_path: Path, sizes: Sequence[int], count: int) -> None:
    files = LogFile(str(tmp_path), "0.0.out"), LogFile(str(tmp_path), "0.0.err")
    pieces = [b"x" * (size - 1) + b"\n" for size in [*[1] * count, *sizes]]
    marks = [
        (sum(map(len, pieces[: end + 1 : 2])), sum(map(len, pieces[1 : end + 1 : 2]))) for end in range(len(pieces))
    ]
    woven = weave(files, (b"".join(pieces[::2]), b"".join(pieces[1::2])), marks, None)
    found = [piece for _, _, piece in split(woven)]
    assert found == pieces[: len(found)]
    assert sum(map(len, found)) <= MAX_BODY
    assert len(found) <= MAX_PIECES
    if len(found) < min(len(pieces), MAX_PIECES) and len(pieces) > 1:
        assert sum(map(len, pieces[: max(2, len(found) + 1)])) > MAX_BODY
