"""Bytes to lines, however they are cut; and text that a terminal would obey."""

from __future__ import annotations

import re
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from clusterddp.logs.lines import LineSplitter, Span, TextLine
from clusterddp.remote.shared.wire.frames import LONGEST_LINE as LONGEST
from clusterddp.text.clean import clean
from clusterddp.text.printable import BIDI, C1

SECOND = 10**9

raw = st.lists(
    st.sampled_from([b"a", b"bc ", b"\n", b"\r", b"\r\n", b"\xff", b"\xc2\x9b", b"\x1b[31m", b"\x1b]0;t\x07"]),
    max_size=40,
).map(b"".join)


UNIT = re.compile(rb"[^\r\n]*\S[^\r\n]*\r\r\n|[^\r\n]*(?:\r\n|\n|\r)|[^\r\n]+")


def fed(pieces: list[bytes], *, step: int | None = 0) -> list[TextLine]:
    tape, offset, found = LineSplitter(), 0, []
    runs: list[Span] = []
    for piece in pieces:
        runs += tape.feed(piece, offset, 0)
        offset += len(piece)
        found += [line for run in runs for line in tape.lines_of(run, step)]
        runs = []
    return found + [line for run in tape.close() for line in tape.lines_of(run, step)]


def cut(data: bytes, cuts: list[int]) -> list[bytes]:
    pieces = []
    for size in cuts:
        pieces.append(data[:size])
        data = data[size:]
    return [*pieces, data]


@settings(deadline=None)
@given(data=raw, cuts=st.lists(st.integers(1, 9), max_size=40))
def test_lines_are_the_same_however_the_bytes_were_cut(data: bytes, cuts: list[int]) -> None:
    found = fed(cut(data, cuts))
    assert found == fed([data])
    ended = [unit for unit in UNIT.findall(data) if unit.endswith(b"\n")]
    redraws = [unit[:-1] for unit in UNIT.findall(data) if unit.endswith(b"\r") and unit.strip()]
    rest = [unit for unit in UNIT.findall(data)[-1:] if unit[-1:] not in b"\r\n"]
    texts = [unit.rstrip(b"\r\n") for unit in ended] + redraws + rest
    assert sorted(text for _, _, text in found) == sorted(texts)
    for offset, following, text in found:
        assert data[offset:following].rstrip(b"\r\n") == text


@settings(deadline=None)
@given(data=raw, cuts=st.lists(st.integers(1, 9), max_size=40))
def test_without_redraws_only_lines_are_left(data: bytes, cuts: list[int]) -> None:
    ended = [unit for unit in UNIT.findall(data) if unit.endswith(b"\n")]
    found = fed(cut(data, cuts), step=None)
    assert [text for _, _, text in found][: len(ended)] == [unit.rstrip(b"\r\n") for unit in ended]


def progress(seconds: int, every: int) -> list[bytes]:
    tape, offset, shown = LineSplitter(), 0, []
    for second in range(0, seconds, every):
        body = b"\r%d s" % second
        for run in tape.feed(body, offset, second * SECOND):
            shown += [text for _, _, text in tape.lines_of(run)]
        offset += len(body)
    return shown + [text for run in tape.close() for _, _, text in tape.lines_of(run)]


def test_redraws_are_thinned_to_one_in_ten_seconds_and_the_last() -> None:
    assert progress(33, 1) == [b"0 s", b"10 s", b"20 s", b"30 s", b"32 s"]
    assert progress(3, 1) == [b"0 s", b"2 s"]


def test_a_bar_that_ends_with_a_newline_shows_its_last_state_once() -> None:
    assert [text for _, _, text in fed([b"\r0%\r50%\r100%\nend\n"], step=60 * SECOND)] == [b"0%", b"100%", b"end"]
    assert [text for _, _, text in fed([b"0%\r100%\r", b"\nend\n"], step=60 * SECOND)] == [b"0%", b"100%", b"end"]
    assert [text for _, _, text in fed([b"0%\r100%\r    "], step=60 * SECOND)] == [b"0%", b"100%"]


@pytest.mark.parametrize("step", [0, 60 * SECOND, None])
@pytest.mark.parametrize("pieces", [[b"10%\rone\r\r\ntwo\r\r\n\r\n"], [b"10%\rone\r", b"\r\ntwo\r\r", b"\n\r\n"]])
def test_a_line_that_a_pty_ended_once_more_is_shown_once(pieces: list[bytes], step: int | None) -> None:
    bar = [] if step is None else [b"10%"]
    assert [text for _, _, text in fed(pieces, step=step)] == [*bar, b"one", b"two", b""]


@pytest.mark.parametrize("pieces", [[b"one\r\r\ntwo\n"], [b"one\r", b"\r\n", b"two\n"], [b"one\r\r", b"\ntwo\n"]])
def test_reading_goes_on_behind_the_whole_end_of_a_line(pieces: list[bytes]) -> None:
    assert fed(pieces) == [(0, 6, b"one"), (6, 10, b"two")]


def test_a_line_over_the_cap_goes_on_as_another() -> None:
    long = b"x" * (2 * LONGEST + 5)
    pieces = cut(long + b"\n", [61_440] * 300)
    assert [(offset, following, len(text)) for offset, following, text in fed(pieces)] == [
        (0, LONGEST, LONGEST), (LONGEST, 2 * LONGEST, LONGEST), (2 * LONGEST, 2 * LONGEST + 6, 5)
    ]  # fmt: skip


def test_a_terminals_last_row_takes_only_the_first_bytes_of_a_long_redraw() -> None:
    tape, bar = LineSplitter(), "\u0300".encode() * 50_000  # letters of no width: no cut to the width ends them
    for offset, piece in ((0, bar), (len(bar), b"\r"), (len(bar) + 1, b" ")):
        for span in tape.feed(piece, offset, 0):
            assert list(tape.lines_of(span, None)) == []
    row = tape.unfinished()
    assert bar.startswith(row)
    assert 0 < len(row) <= 4096
    assert [span.data for span in tape.close()] == [bar]


def test_a_gap_ends_what_was_begun() -> None:
    tape = LineSplitter()
    assert tape.feed(b"begun", 0, 1) == []
    assert tape.feed(b"after\n", 90, 2) == [Span(0, b"begun", 1), Span(90, b"after\n", 2)]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (b"plain \xc3\xa9\t\xe2\x9c\x93\n", b"plain \xc3\xa9\t\xe2\x9c\x93\n"),
        (b"\x1b[1;31mred\x1b[0m", b"\x1b[1;31mred\x1b[0m"),
        (b"\x1b[38:2:1:2:3mrgb\x1b[m", b"\x1b[38:2:1:2:3mrgb\x1b[m"),
        (b"a\x1b[2Jb\x1b[10;10Hc\x1b[?1049hd", b"abcd"),
        (b"\x1b]0;title\x07a\x1b]52;c;cGF3bmVk\x1b\\b", b"ab"),
        (b"\x1b]0;never ends\nnext", b"\nnext"),
        (b"\x1bPq#0\x1b\\a\x1bcb\x1b(Bc\x1b7d\x1b", b"abcd"),
        (b"bell\x07 back\x08space\x7f", b"bell backspace"),
        (b"\xc2\x9b2Ja\xc2\x9d0;t\x07b\xc2\x85", b"ab"),
        (b"\xc2\x07\x9b2J", b"2J"),
        (b"\xc2\xc2\x9b\x9b2J", b"\xc2\x9b2J"[2:]),
        (b"\x1b\x1b]x\x07[2J", b"[2J"),
        (b"\x1b\x07[2J", b"[2J"),
        (b"\xff\xfe invalid \x9b2J", b"\xff\xfe invalid \x9b2J"),
        (b"\xc2\x1b[2J\x9b2J", b"2J"),
    ],
)
def test_what_a_terminal_would_obey_is_stripped_but_colour_stays(text: bytes, expected: bytes) -> None:
    assert clean(text) == expected


@settings(deadline=None)
@given(st.lists(st.sampled_from([b"\x1b", b"[", b"]", b"2J", b"m", b"\x07", b"\xc2", b"\x9b", b"\n", b"x", b"\\"])))
def test_no_mixture_leaves_an_escape_that_is_no_colour(parts: list[bytes]) -> None:
    found = clean(b"".join(parts))
    assert found.replace(b"\x1b[m", b"").replace(b"\x1b[2m", b"").count(b"\x1b") == 0
    assert b"\xc2\x9b" not in found
    assert found.count(b"\n") == parts.count(b"\n")


@pytest.mark.parametrize(
    ("style", "kept"),
    [
        ("8", None),
        ("5", None),
        ("6", None),
        ("08", None),
        ("0008", None),
        ("8:1", None),
        ("1;8", "1"),
        ("8;1", "1"),
        ("31;5;1;8;4", "31;1;4"),
        ("0;8", "0"),
        (";8", "0"),
        ("38;5;8", "38;5;8"),
        ("38;5;5;8;48;5;6", "38;5;5;48;5;6"),
        ("38;2;5;6;8", "38;2;5;6;8"),
        ("38;2;5;6;8;8", "38;2;5;6;8"),
        ("58;5;8;1;8", "58;5;8;1"),
        ("038;05;8", "038;05;8"),
        ("38:5:8", "38:5:8"),
        ("48:2::5:6:8;8", "48:2::5:6:8"),
        ("1;38;8;31", "1"),
        ("1;38;2;8", "1"),
        ("58", "58"),
        ("85;68;15", "85;68;15"),
        ("25;28", "25;28"),
        (";".join(["1"] * 100), ";".join(["1"] * 100)),
        (";".join(["1"] * 100) + ";8", None),
    ],
)
def test_nothing_is_hidden_or_blinks_and_other_styles_stay(style: str, kept: str | None) -> None:
    left = b"" if kept is None else b"\x1b[%sm" % kept.encode()
    assert clean(b"a\x1b[%smb" % style.encode()) == b"a" + left + b"b"


STYLES = st.lists(
    st.sampled_from(["", "0", "1", "2", "5", "05", "6", "8", "38", "48", "58", "31", "8:5", "38:5:8", "128"])
)


@given(STYLES)
def test_no_mixture_of_numbers_hides_anything(numbers: list[str]) -> None:
    found = clean(b"\x1b[%sm" % ";".join(numbers).encode()).decode()
    assert found == "" or (found[:2], found[-1]) == ("\x1b[", "m")
    words = found[2:-1].split(";") if found else []
    while words:
        first = words.pop(0)
        if first in {"38", "48", "58"}:
            kind = words.pop(0) if words else "end"
            assert kind in {"2", "5", "05", "end"}
            del words[: {"2": 3, "5": 1, "05": 1}.get(kind, 0)]
        assert first.partition(":")[0] not in {"5", "05", "6", "8"}


@pytest.mark.parametrize("mark", BIDI)
def test_marks_that_turn_a_line_round_are_struck(mark: str) -> None:
    assert clean(f"saved to {mark}gpj.exe{mark}\n".encode()) == b"saved to gpj.exe\n"


@pytest.mark.parametrize(
    "text",
    ["خطوة ١٢", "שלום עולם", "می‌خواهم", "👩‍👩‍👧 ✓ …", "naïve “quoted” ‰ €"],
)
def test_letters_of_any_script_stay(text: str) -> None:
    assert clean(f"{text}\t{text}\n".encode()) == f"{text}\t{text}\n".encode()


PIECES = [
    b"\xe2",
    b"\x80",
    b"\x81",
    b"\xae",
    b"\xa6",
    b"\xd8",
    b"\x9c",
    b"\xc2",
    b"\x9b",
    b"\x85",
    b"\x07",
    b"\x1b",
    b"[8m",
    b"x",
]


@settings(deadline=None)
@given(st.lists(st.sampled_from(PIECES)))
def test_no_mixture_of_bytes_leaves_what_a_terminal_obeys(parts: list[bytes]) -> None:
    found = clean(b"".join(parts))
    assert not set(found.decode(errors="replace")) & {*BIDI, *C1, "\x07", "\x1b"}


@pytest.mark.parametrize(
    "unit",
    [
        b"\x1b",
        b"\x1b[",
        b"\x1b[8",
        b"\x1b[8m",
        b"\x1b[38;5;8;8m",
        b"8;",
        b"\xe2\x80\xae",
        b"\xd8\x9c",
        b"\xc2",
        b"\xe2\x80",
        b"0",
    ],
)
@pytest.mark.parametrize("begin", [b"", b"\x1b[", b"\x1b]"])
def test_a_line_of_megabytes_costs_little_time(begin: bytes, unit: bytes) -> None:
    line = begin + unit * (LONGEST // 8 // len(unit)) + b"m"
    began = time.process_time()
    clean(line)
    assert time.process_time() - began < 3
