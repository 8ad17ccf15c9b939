"""What lines look like: in a file, as JSON, on a terminal; and that every reader shows the same."""

from __future__ import annotations

import io
import json
import re
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from clusterddp.errors import UnreachableError, UsageError
from clusterddp.logs.checked_frames import FilePart, Lines, LogHeader
from clusterddp.logs.incoming import read_frame
from clusterddp.logs.merge import FrameArrived, StreamBroken, StreamEnded
from clusterddp.logs.render import MAX_HELD, JsonRenderer, LineReader, Renderer, TextRenderer
from clusterddp.logs.renderers import renderer_for
from clusterddp.logs.screen import TerminalRenderer
from clusterddp.logs.selection import Selection
from clusterddp.remote.shared.run.plan import AGENT_LOG
from clusterddp.remote.shared.wire.frames import Frame
from tests.unit.spool_writer import Tail, Writer, read

if TYPE_CHECKING:
    from pathlib import Path

SECOND = 10**9


class Source:
    """Frames of one file, with the offsets they would have."""

    def __init__(self, rank: int | None = 3, local_rank: int | None = 1, host: str = "gpu01") -> None:
        self.host, self.offset = host, 0
        self.file: dict[str, Any] = {
            "file": AGENT_LOG if local_rank is None else f"0.{local_rank}.out",
            "start": 0,
            "local_rank": local_rank,
            "rank": rank,
            "stream": "out",
        }

    def frame(self, body: bytes, time: int | None = None, **more: Any) -> Lines:
        begin = self.offset
        self.offset += len(body)
        return Lines(part=FilePart(**self.file, offset=begin, next=self.offset, time=time, **more), body=body)


def text(renderer: Renderer, source: Source, *bodies: bytes) -> bytes:
    return b"".join(renderer.feed(source.host, source.frame(body)) for body in bodies)


def terminal(width: int = 40, **options: Any) -> TerminalRenderer:
    return TerminalRenderer(width=lambda: width, **options)


class Screen:
    """A terminal that knows what is needed here: returns, clearing a line, newlines."""

    def __init__(self) -> None:
        self.rows = [""]

    def write(self, data: bytes) -> None:
        plain = re.sub(rb"\x1b\[[0-9;]*m", b"", data).decode(errors="replace")
        for part in re.split(r"(\r\x1b\[K|\n)", plain):
            if part == "\n":
                self.rows.append("")
            elif part == "\r\x1b[K":
                self.rows[-1] = ""
            else:
                self.rows[-1] += part


def test_each_line_is_labelled_with_rank_host_and_local_rank() -> None:
    assert text(TextRenderer(), Source(), b"step 10\nstep 11\n") == b"[3 gpu01:1] step 10\n[3 gpu01:1] step 11\n"
    assert text(TextRenderer(), Source(rank=None, local_rank=None), b"W1 x\n") == b"[agent gpu01] W1 x\n"
    assert text(TextRenderer(), Source(rank=None), b"x\n") == b"[? gpu01:1] x\n"


def test_a_line_in_pieces_is_one_line_and_no_other_rank_is_glued_to_it() -> None:
    renderer, one, two = TextRenderer(), Source(), Source(rank=4, local_rank=2)
    out = text(renderer, one, b"half ") + text(renderer, two, b"whole\n") + text(renderer, one, b"done\n")
    assert out == b"[4 gpu01:2] whole\n[3 gpu01:1] half done\n"


def test_the_end_of_a_host_shows_its_unfinished_lines_only() -> None:
    renderer, one, other = TextRenderer(), Source(), Source(host="gpu02")
    text(renderer, one, b"no newline")
    text(renderer, other, b"still open")
    assert renderer.end("gpu01") == b"[3 gpu01:1] no newline\n"
    assert renderer.end("gpu01") == b""


def test_timestamps_stand_before_the_label() -> None:
    renderer = TextRenderer(timestamps=True)
    out = renderer.feed("gpu01", Source().frame(b"a\nb\n", 1_700_000_000_123_456_789))
    pattern = rb"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.123[+-]\d\d:\d\d \[3 gpu01:1\] (a|b)"
    assert all(re.fullmatch(pattern, line) for line in out.splitlines())


def test_json_has_the_contracts_fields_and_raw_offsets() -> None:
    renderer, source = JsonRenderer(), Source()
    renderer.feed("gpu01", LogHeader(run="r1", attempt=2, clock_error_ns=1_500_000))
    out = renderer.feed("gpu01", source.frame(b"caf\xc3\xa9 \xff\r\nnext\n", 1_700_000_000_500_000_000))
    first, second = map(json.loads, out.splitlines())
    assert first == {
        "time": 1_700_000_000.5, "time_error_ms": 101.5, "run": "r1", "attempt": 2, "round": 0, "rank": 3,
        "host": "gpu01", "local_rank": 1, "stream": "out", "offset": 0, "next": 9, "text": "caf\u00e9 \ufffd",
    }  # fmt: skip
    assert " ".join(first) == (
        "time time_error_ms run attempt round rank host local_rank stream offset next text"  # in this order
    )
    assert (second["offset"], second["next"], second["text"]) == (9, 14, "next")


def test_redraws_in_a_file_are_lines_every_ten_seconds_and_the_last() -> None:
    renderer, source = TextRenderer(), Source()
    out = b"".join(renderer.feed("gpu01", source.frame(b"\r%d" % s, s * SECOND)) for s in range(25))
    out += renderer.feed("gpu01", source.frame(b"\rdone\n", 26 * SECOND))
    assert out.replace(b"[3 gpu01:1] ", b"").split() == [b"0", b"10", b"20", b"done"]


def test_windows_newlines_are_newlines() -> None:
    assert text(TextRenderer(), Source(), b"a\r\nb\r", b"\nc\n").replace(b"[3 gpu01:1] ", b"") == b"a\nb\nc\n"


@pytest.mark.parametrize("bodies", [(b"a\r\r\n", b"b\r\r\n"), (b"a\r", b"\r\n", b"b\r", b"\r\n")])
def test_the_newlines_of_a_pty_are_newlines(bodies: tuple[bytes, ...]) -> None:
    shown, screen = text(TextRenderer(), Source(), *bodies), Screen()
    screen.write(text(terminal(), Source(), *bodies))
    assert shown.replace(b"[3 gpu01:1] ", b"") == b"a\nb\n"
    assert screen.rows == ["[3 gpu01:1] a", "[3 gpu01:1] b", ""]


def test_escapes_are_stripped_in_files_too() -> None:
    assert text(TextRenderer(), Source(), b"\x1b]0;x\x07a\x1b[2J\x1b[31mb\n") == b"[3 gpu01:1] a\x1b[31mb\n"


def test_dropped_bytes_are_a_notice_and_no_line() -> None:
    renderer, source = TextRenderer(), Source()
    source.offset = 4096
    frames = [source.frame(b"", dropped=4096), source.frame(b"a\n")]
    assert renderer.draw([FrameArrived(host="gpu01", frame=frame) for frame in frames]) == b"[3 gpu01:1] a\n"
    assert renderer.notices == ["[3 gpu01:1] dropped: 4096 bytes, the log limit was reached"]


def test_dropped_bytes_are_a_record_of_their_own_in_json() -> None:
    reader, source = LineReader(), Source()
    begun = reader.feed("gpu01", source.frame(b"cut in the mid"))
    source.offset = 4096
    gap = reader.feed("gpu01", source.frame(b"", dropped=4082))
    after = reader.feed("gpu01", source.frame(b"a\n"))
    places = [(line.offset, line.next, line.text, line.dropped) for line in (*begun, *gap, *after)]
    assert places == [(0, 14, "cut in the mid", 0), (14, 4096, "", 4082), (4096, 4098, "a", 0)]
    as_json = JsonRenderer()
    assert "dropped" not in json.loads(as_json.feed("gpu01", source.frame(b"b\n")))
    assert json.loads(as_json.feed("gpu01", source.frame(b"", dropped=7)))["dropped"] == 7


def test_breaks_are_said_and_a_host_given_up_shows_what_it_had() -> None:
    renderer, source = TextRenderer(), Source()
    error = UnreachableError("gpu01", "the connection was lost")
    drawn = renderer.draw(
        [
            FrameArrived(host="gpu01", frame=source.frame(b"half")),
            StreamBroken(host="gpu01", error=error, retry=1.0),
            FrameArrived(host="gpu01", frame=source.frame(b" more")),
            StreamBroken(host="gpu01", error=error, retry=None),
            StreamEnded(host="gpu02", ended=None),
        ]
    )
    assert drawn == b"[3 gpu01:1] half more\n"
    assert [line.partition(":")[0] for line in renderer.notices] == [
        "logs of gpu01 are interrupted",
        "no more logs of gpu01",
    ]


def test_a_rank_keeps_its_colour_and_another_has_its_own() -> None:
    out = text(terminal(), Source(rank=0), b"a\nb\n") + text(terminal(), Source(rank=1, host="gpu02"), b"c\n")
    colours = [line.partition(b"m")[0] for line in out.splitlines()]
    assert colours[0] == colours[1] != colours[2]
    assert out.startswith(b"\x1b[36m[0 gpu01:1]\x1b[0m a\n")


def test_no_colour_where_none_is_wanted_and_a_rank_cannot_paint_the_next_line() -> None:
    assert text(terminal(colour=False), Source(), b"a\n") == b"[3 gpu01:1] a\n"
    assert text(terminal(colour=False), Source(), b"\x1b[31mred\nb\n").splitlines()[0].endswith(b"red\x1b[0m")


def test_a_bar_is_redrawn_in_place_and_other_lines_pass_above_it() -> None:
    renderer, bar, other, screen = terminal(), Source(), Source(rank=4, local_rank=2), Screen()
    for body in (b"\r10%", b"\r20%"):
        screen.write(text(renderer, bar, body))
    assert screen.rows == ["[3 gpu01:1] 20%"]
    screen.write(text(renderer, other, b"line\n"))
    assert screen.rows == ["[4 gpu01:2] line", "[3 gpu01:1] 20%"]
    screen.write(text(renderer, bar, b"\r100%\n"))
    assert screen.rows == ["[4 gpu01:2] line", "[3 gpu01:1] 100%", ""]


def test_two_open_lines_take_turns_at_the_bottom_and_both_end_whole() -> None:
    renderer, one, two, screen = terminal(), Source(), Source(rank=4, local_rank=2), Screen()
    for source, body in ((one, b"loss"), (two, b"acc"), (one, b"=1\n"), (two, b"=2\n")):
        screen.write(text(renderer, source, body))
    assert screen.rows == ["[3 gpu01:1] loss=1", "[4 gpu01:2] acc=2", ""]


def test_an_open_line_is_cut_to_the_width() -> None:
    renderer, screen = terminal(width=20), Screen()
    screen.write(text(renderer, Source(), "漢字漢字漢字".encode()))
    assert screen.rows == ["[3 gpu01:1] 漢字漢"]
    screen.write(renderer.hide())
    assert screen.rows == [""]


@pytest.mark.parametrize("timestamps", [False, True])
def test_the_label_of_an_open_line_is_cut_too_where_the_terminal_is_narrower(*, timestamps: bool) -> None:
    renderer, screen = terminal(width=9, timestamps=timestamps), Screen()
    screen.write(text(renderer, Source(), b"10%"))
    assert [len(row) for row in screen.rows] == [8]
    screen.write(renderer.hide())
    assert screen.rows == [""]


def test_the_renderer_fits_the_output(monkeypatch: pytest.MonkeyPatch) -> None:
    class Terminal(io.BytesIO):
        def isatty(self) -> bool:
            return True

    def made(output: io.BytesIO, *, as_json: bool = False, **environment: str) -> Renderer:
        for name in ("TERM", "NO_COLOR", "CLICOLOR_FORCE"):
            monkeypatch.setenv(name, environment.get(name, ""))
        return renderer_for(output, as_json=as_json)

    assert type(made(io.BytesIO())) is TextRenderer
    assert type(made(Terminal())) is TerminalRenderer
    assert type(made(Terminal(), TERM="dumb")) is TextRenderer
    assert type(made(Terminal(), as_json=True)) is JsonRenderer
    plain = made(Terminal(), NO_COLOR="1")
    assert text(plain, Source(), b"a\n") == b"[3 gpu01:1] a\n"
    forced = made(io.BytesIO(), CLICOLOR_FORCE="1", TERM="dumb")
    assert text(forced, Source(), b"a\n") == b"\x1b[32m[3 gpu01:1]\x1b[0m a\n"
    both = made(io.BytesIO(), CLICOLOR_FORCE="1", NO_COLOR="1")
    assert text(both, Source(), b"a\n") == b"[3 gpu01:1] a\n"


@pytest.mark.parametrize(
    "wrong", [{"stream": "x"}, {"tail": -1}, *({"grep": text} for text in ("(", "a**", "a{9999999999}", "(" * 5000))]
)
def test_a_selection_that_cannot_be_meant_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(UsageError):
        Selection(**wrong)


parts = st.lists(
    st.tuples(
        st.integers(0, 2),
        st.lists(st.sampled_from([b"a", b"bc ", b"\n", b"\r\n", b"\r", b"\xff", b"\xe2\x9c\x93"]), max_size=6).map(
            b"".join
        ),
    ),
    max_size=30,
)


@settings(deadline=None)
@given(parts=parts)
def test_a_terminal_ends_with_every_line_of_every_rank_whole(parts: list[tuple[int, bytes]]) -> None:
    renderer, screen = terminal(width=60, colour=False), Screen()
    sources = [Source(rank=rank, local_rank=rank) for rank in range(3)]
    wrote = [b"", b"", b""]
    for rank, body in parts:
        plain = body.replace(b"\r", b"")  # redraws have tests of their own
        screen.write(renderer.feed("gpu01", sources[rank].frame(plain)))
        wrote[rank] += plain
    screen.write(renderer.end("gpu01"))
    for rank, data in enumerate(wrote):
        label = f"[{rank} gpu01:{rank}] "
        expected = [label + line for line in data.decode(errors="replace").removesuffix("\n").split("\n") if data]
        assert [row for row in screen.rows if row.startswith(label)] == expected
    assert all(row.startswith("[") for row in screen.rows[:-1])


def rendered(tail: Tail, renderer: Renderer) -> bytes:
    return b"".join(renderer.feed("h", frame) for frame in tail.check_frames()) + renderer.end("h")


def test_a_replay_shows_what_was_shown_live(tmp_path: Path) -> None:
    writer = Writer(tmp_path)
    writer.start(0, 0)
    tails = [
        Tail(writer, follow=True, timed=timed).begin().wait(lambda t: len(t.frames) > 1) for timed in (False, True)
    ]
    for second in range(40):
        writer.say("0.0.out", b"line %d\npart" % second if second % 9 == 0 else b"\r%d%% \xff" % second, 0.7)
    writer.end()
    live, timed = [tail.finish() for tail in tails]
    replay = read(writer, timed=True)
    assert rendered(live, TextRenderer()) == rendered(replay, TextRenderer())
    assert rendered(timed, JsonRenderer()) == rendered(replay, JsonRenderer())
    assert rendered(timed, TextRenderer(timestamps=True)) == rendered(replay, TextRenderer(timestamps=True))


def test_lines_are_values_with_the_file_they_are_from() -> None:
    (line,) = LineReader().feed("gpu01", Source().frame(b"step\n", SECOND))
    assert (line.text, line.rank, line.host, line.time, line.next) == ("step", 3, "gpu01", 1.0, 5)


@pytest.mark.parametrize("end", [b"", b"\r"])
def test_the_unfinished_lines_of_a_host_are_held_up_to_a_limit_and_all_are_shown(end: bytes) -> None:
    renderer, body = TextRenderer(), b"x" * (60 << 10)
    sources = [Source(rank=number, local_rank=number) for number in range(200)]
    shown = b""
    for _ in range(20):  # 234 MiB
        for source in sources:
            shown += renderer.feed(source.host, source.frame(body)).replace(b"\n", b"")
            assert sum(view.splitter.held for view in renderer.views.values()) <= MAX_HELD
    for source in sources:
        shown += renderer.feed(source.host, source.frame(end))
    shown += renderer.end(sources[0].host)
    assert shown.count(b"x") == 20 * 200 * len(body)


def test_redraws_of_many_files_are_held_up_to_a_limit() -> None:
    renderer, body = TextRenderer(), b"x" * (1 << 20)
    for number in range(200):
        source = Source(rank=number, local_rank=number)
        for piece in (body, b"\r" + body, b"\ry"):  # the first is shown, the second would be drawn over
            renderer.feed(source.host, source.frame(piece, SECOND))
        assert sum(view.splitter.held for view in renderer.views.values()) <= MAX_HELD


def test_a_long_line_of_one_host_is_not_cut_because_another_host_sends_many() -> None:
    renderer = TextRenderer()
    mine = Source(rank=0, local_rank=0, host="gpu00")
    assert text(renderer, mine, b"a" * 1000) == b""
    for number in range(100):
        text(renderer, Source(rank=number, local_rank=number), b"x" * (1 << 20))
    assert text(renderer, mine, b"b\n") == b"[0 gpu00:0] " + b"a" * 1000 + b"b\n"


@pytest.mark.parametrize("begun", ["", "out", "err"])
@pytest.mark.parametrize(
    "body", [b"one\ntwo\nthree\nfour\n", b"one\n\rtwo\nthree\rx\nfour\n", b"one\ntw\x1b[2Jo\n3\nfour"]
)
def test_a_frame_of_both_streams_shows_what_one_frame_for_each_piece_shows(body: bytes, begun: str) -> None:
    at = {stream: 6 if stream == begun else 0 for stream in ("out", "err")}
    header = {"file": "0.0.out", "start": 0, "local_rank": 0, "rank": 3, "stream": "out", "offset": at["out"]}
    second = {"offset": at["err"], "next": at["err"] + 4}
    value = {**header, "next": at["out"] + len(body) - 4, "second": second, "pieces": [4, 4, len(body) - 8]}
    lines = read_frame(Frame(value, body))
    assert isinstance(lines, Lines)
    shown = []
    for frames in ([lines], list(lines.split())):
        drawn = TextRenderer()
        if begun:
            first = {**header, "file": f"0.0.{begun}", "stream": begun, "offset": 0, "next": 6}
            drawn.feed("gpu01", read_frame(Frame(first, b"begun ")))
        shown.append(b"".join(drawn.feed("gpu01", one) for one in frames) + drawn.end("gpu01"))
    assert shown[0] == shown[1]
    assert shown[0].count(b"[3 gpu01:0] ") == shown[0].count(b"\n") >= 4
