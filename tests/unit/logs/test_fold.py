"""Equal lines of several ranks shown once: what folds and what never does, how long a line waits; none is lost."""

from __future__ import annotations

import re
from collections import defaultdict
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from clusterddp.logs.checked_frames import LogHeader
from clusterddp.logs.fold import HOLD_TIME, MAX_BYTES, MAX_TIME_APART, MAX_TRACKED, Fold
from clusterddp.logs.merge import FrameArrived, StreamEnded
from clusterddp.logs.render import JsonRenderer, TextRenderer
from clusterddp.logs.screen import TerminalRenderer
from clusterddp.logs.view import FileView
from clusterddp.text.units import ranks
from tests.unit.logs.test_render import Screen, Source

if TYPE_CHECKING:
    from clusterddp.logs.render import Renderer

_LABEL = re.compile(r"\[([\d,-]+)(?: (\S+):(\d+))?\] (.*)", re.DOTALL)


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def folding(renderer: Renderer) -> tuple[Renderer, Clock]:
    clock = Clock()
    renderer.fold(Fold(clock))
    return renderer, clock


def drawn(renderer: Renderer, *said: tuple[Source, bytes], **more: Any) -> bytes:
    return renderer.draw([FrameArrived(host=one.host, frame=one.frame(body, **more)) for one, body in said])


def workers(count: int, hosts: int = 2) -> list[Source]:
    return [Source(rank=rank, local_rank=rank // hosts, host=f"gpu{rank % hosts:02}") for rank in range(count)]


def unfolded(text: bytes) -> dict[int, list[str]]:
    """The lines of each rank, out of a folded output."""
    found = defaultdict(list)
    for line in text.decode().splitlines():
        match = _LABEL.fullmatch(line)
        assert match, line
        for rank in ranks(match[1]) or ():
            found[rank].append(match[4])
    return found


def test_equal_lines_are_shown_once_with_the_ranks_that_said_them() -> None:
    renderer, clock = folding(TextRenderer())
    eight = workers(8)
    assert drawn(renderer, *[(one, b"epoch 1\n") for one in eight], (eight[3], b"saved\n")) == b""
    drawn(renderer, *[(one, b"step 2\n") for one in eight if one is not eight[6]])
    clock.now += HOLD_TIME
    assert renderer.draw([]) == b"[0-7] epoch 1\n[3 gpu01:1] saved\n[0-5,7] step 2\n"
    assert renderer.draw([]) == b""


def test_no_line_is_held_for_longer_than_its_time_and_the_renderer_says_when_to_ask() -> None:
    renderer, clock = folding(TextRenderer())
    one, two = workers(2)
    assert (TextRenderer().wait(), renderer.wait()) == (None, None)
    drawn(renderer, (one, b"a\n"))
    assert renderer.wait() == pytest.approx(HOLD_TIME)
    clock.now += HOLD_TIME / 2
    assert drawn(renderer, (two, b"b\n")) == b""
    assert renderer.wait() == pytest.approx(HOLD_TIME / 2)
    clock.now += HOLD_TIME / 2
    assert drawn(renderer, (two, b"a\n")) == b"[0 gpu00:0] a\n"
    clock.now += HOLD_TIME / 2
    assert renderer.draw([]) == b"[1 gpu01:0] b\n"
    clock.now += HOLD_TIME
    assert (renderer.draw([]), renderer.wait()) == (b"[1 gpu01:0] a\n", None)


def test_a_rank_that_repeats_itself_folds_line_by_line_and_never_overtakes_itself() -> None:
    renderer, _ = folding(TextRenderer())
    one, two = workers(2)
    drawn(renderer, (one, b"a\nb\na\n"), (two, b"b\na\na\nb\n"))
    assert renderer.hide() == b"[0 gpu00:0] a\n[0,1] b\n[0,1] a\n[1 gpu01:0] a\n[1 gpu01:0] b\n"


def test_streams_starts_and_attempts_are_never_folded_together() -> None:
    renderer, _ = folding(TextRenderer())
    one, two = workers(2)
    differences: list[dict[str, Any]] = [{"stream": "err", "file": "0.0.err"}, {"start": 1, "file": "1.0.out"}]
    for number, differs in enumerate(differences):
        drawn(renderer, (one, b"%d\n" % number))
        other = Source(rank=1, local_rank=0, host="gpu01")
        other.file |= differs
        drawn(renderer, (other, b"%d\n" % number))
        assert renderer.hide().count(b"%d\n" % number) == 2
    for host, attempt in (("gpu00", 1), ("gpu01", 2)):
        renderer.draw([FrameArrived(host=host, frame=LogHeader(run="r", attempt=attempt, clock_error_ns=0))])
    drawn(renderer, (one, b"x\n"), (two, b"x\n"))
    assert renderer.hide() == b"[0 gpu00:0] x\n[1 gpu01:0] x\n"


def test_agents_and_workers_without_a_rank_stand_for_themselves() -> None:
    renderer, _ = folding(TextRenderer())
    agents = [Source(rank=None, local_rank=None, host=host) for host in ("gpu00", "gpu01")]
    unknown = [Source(rank=None, local_rank=0, host=host) for host in ("gpu00", "gpu01")]
    drawn(renderer, *[(one, b"x\n") for one in [*agents, *unknown]])
    assert renderer.hide() == b"[agent gpu00] x\n[agent gpu01] x\n[? gpu00:0] x\n[? gpu01:0] x\n"


def test_what_was_said_long_after_is_another_line_though_a_replay_shows_both_at_once() -> None:
    renderer, _ = folding(TextRenderer())
    for one, time in zip(workers(3), (0, MAX_TIME_APART, MAX_TIME_APART + 1), strict=True):
        drawn(renderer, (one, b"eval\n"), time=time)
    assert renderer.hide() == b"[0,1] eval\n[2 gpu00:1] eval\n"


def test_a_folded_line_has_the_time_of_the_first() -> None:
    renderer, _ = folding(TextRenderer(timestamps=True))
    for number, one in enumerate(workers(3)):
        drawn(renderer, (one, b"a\n"), time=1_700_000_000_123_000_000 + number * 10**6)
    assert re.fullmatch(rb"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.123[+-]\d\d:\d\d \[0-2\] a\n", renderer.hide())


def test_what_is_held_is_bounded() -> None:
    renderer, _ = folding(TextRenderer())
    one, two = workers(2)
    out = drawn(renderer, (one, b"x" * MAX_BYTES + b"\n"))
    assert out == b"[0 gpu00:0] " + b"x" * MAX_BYTES + b"\n"
    many = b"".join(b"%d\n" % number for number in range(30_000))
    out = drawn(renderer, (two, many))
    assert 0 < len(out.splitlines()) < 30_000
    assert unfolded(out + renderer.hide())[1] == many.decode().split()


def test_json_is_never_folded() -> None:
    renderer, _ = folding(JsonRenderer())
    assert drawn(renderer, *[(one, b"a\n") for one in workers(3)]).count(b'"text": "a"') == 3
    assert renderer.wait() is None


def test_held_lines_stand_before_a_notice() -> None:
    renderer, _ = folding(TextRenderer())
    one, two = workers(2)
    drawn(renderer, (one, b"a\n"), (two, b"a\n"))
    assert drawn(renderer, (two, b""), dropped=0) == b""
    assert drawn(renderer, (two, b""), dropped=1) == b"[0,1] a\n"
    assert renderer.notices


def terminal(**options: Any) -> tuple[Renderer, Clock]:
    return folding(TerminalRenderer(width=lambda: 60, **options))


def test_on_a_terminal_folded_lines_pass_above_a_progress_bar_which_does_not_wait() -> None:
    renderer, clock = terminal()
    screen, three = Screen(), workers(3)
    screen.write(drawn(renderer, (three[2], b"\r50%")))
    assert screen.rows == ["[2 gpu00:1] 50%"]
    screen.write(drawn(renderer, (three[0], b"a\n"), (three[1], b"a\n")))
    assert screen.rows == ["[2 gpu00:1] 50%"]
    clock.now += HOLD_TIME
    screen.write(drawn(renderer, (three[2], b"\r60%")))
    assert screen.rows == ["[0,1] a", "[2 gpu00:1] 60%"]
    screen.write(drawn(renderer, (three[0], b"b\n")))
    screen.write(renderer.hide())
    assert screen.rows == ["[0,1] a", "[0 gpu00:0] b", ""]


def test_a_folded_label_has_no_ranks_colour_and_its_text_paints_no_other_line() -> None:
    renderer, _ = terminal()
    drawn(renderer, *[(one, b"\x1b[31mred\n") for one in workers(3)])
    assert renderer.hide() == b"\x1b[1m[0-2]\x1b[0m \x1b[31mred\x1b[0m\n"
    plain, _ = terminal(colour=False)
    drawn(plain, *[(one, b"a\n") for one in workers(3)])
    assert plain.hide() == b"[0-2] a\n"


words = st.lists(st.sampled_from([b"a", b"b", b"", b"long line "]), max_size=4).map(b"\n".join)
steps = st.lists(
    st.tuples(st.integers(0, 9), words, st.booleans(), st.sampled_from([0.0, 0.01, HOLD_TIME])), max_size=60
)


@settings(deadline=None, max_examples=150)
@given(steps=steps)
def test_unfolding_gives_every_line_of_every_rank_once_and_in_its_order(
    steps: list[tuple[int, bytes, bool, float]],
) -> None:
    plain, (renderer, clock) = TextRenderer(), folding(TextRenderer())
    files = [{stream: Source(rank=one, local_rank=one, host=f"gpu{one % 3}") for stream in ("out", "err")}
             for one in range(10)]  # fmt: skip
    wanted = written = b""
    for rank, body, err, passed in steps:
        stream = "err" if err else "out"
        source = files[rank][stream]
        source.file |= {"stream": stream, "file": f"0.{rank}.{stream}"}
        events = [FrameArrived(host=source.host, frame=source.frame(body + b"\n" * (len(body) % 2)))]
        wanted += plain.draw(events)
        clock.now += passed
        written += renderer.draw(events)
        waits = renderer.wait()
        assert waits is None or 0 < waits <= HOLD_TIME
    ends = [StreamEnded(host=f"gpu{one}", ended=None) for one in range(3)]
    wanted += plain.draw(ends)
    written += renderer.draw(ends) + renderer.hide()
    assert unfolded(written) == unfolded(wanted)


def test_ranks_that_a_host_invents_are_forgotten_again() -> None:
    clock = Clock()
    fold, source = Fold(clock), Source(rank=0, local_rank=0)
    part = source.frame(b"").part
    view = FileView(source.host, part)
    for rank in range(5 * MAX_TRACKED):
        view.part = part._replace(rank=rank)
        fold.take(view, 0, None, b"line\n")
        clock.now += HOLD_TIME / 10
        assert len(fold._latest) <= MAX_TRACKED + 1
