"""What `top` shows on terminals of several widths, and elsewhere."""

from __future__ import annotations

import re
import sys

import pytest

from clusterddp.cli import top_tables
from clusterddp.remote.shared.collectives.hang_judge import UNDECIDED
from clusterddp.remote.shared.collectives.lateness import LateRanks
from clusterddp.remote.shared.probes.usage_records import GpuProcess
from clusterddp.runs.top_looks import HostLook, TopLook
from tests.unit.runs.top_made import GPU, look, pace, usage

_STYLE = re.compile(r"\x1b\[[\d;]*m")


def shown(monkeypatch: pytest.MonkeyPatch, value: TopLook, columns: int = 0) -> list[str]:
    """The lines without their colours; ``columns`` of a terminal, 0 for a pipe."""
    if columns:
        monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
        monkeypatch.setenv("COLUMNS", str(columns))
        monkeypatch.setenv("TERM", "xterm")
    return [_STYLE.sub("", line) for line in top_tables.lines(value)]


def test_a_live_run_at_eighty_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    assert shown(monkeypatch, look(), 80) == [
        "run 33n7fac6he (night): running for 5m00s, 2 ranks; 59m43s to its time limit",
        "rank 1 (gpu01:0) is late in each step: 10.0 ms (median) after the second-latest",
        "rank, the last in 98% of 99 steps",
        "rank  worker   calls/s  late     memory  output   waits",
        "1     gpu01:0  9.9      10.0 ms  250M    2 s ago  -",
        "0     gpu00:0  9.9      0.0 ms   250M    2 s ago  -",
        "host   cpu        memory   disk  read/s  write/s  nic       in/s  out/s",
        "gpu00  50%        48G/64G  95%   5M      2M       mlx5_0:1  900M  800M",
        "gpu01  -          48G/64G  95%   -       -        -         -     -",
        "gpu02  no answer  -        -     -       -        -         -     -",
        "GPU      use  memory       power  temperature  Xids",
        "gpu00:0  97%  64.2G/85.5G  612 W  64 °C        79 5 min ago",
        "gpu00:1  97%  64.2G/85.5G  612 W  64 °C        -",
        "gpu01: its GPUs are not known: nvidia-smi did not answer within 8 s",
        "gpu02: no answer for 20 s",
    ]


@pytest.mark.parametrize("columns", [30, 40, 60, 80, 200])
def test_nothing_is_wider_than_the_terminal(monkeypatch: pytest.MonkeyPatch, columns: int) -> None:
    lines = shown(monkeypatch, look(), columns)
    assert max(map(len, lines)) <= columns
    assert "rank 1 (gpu01:0) is" in " ".join(lines)


@pytest.mark.parametrize(
    ("size", "text"),
    [
        *((None, "-"), (0, "0"), (1, "1"), (999, "999"), (2150, "2.15k"), (2e9, "2G"), (2e12, "2T")),
        *((999_499, "999k"), (999_500, "1M"), (999_900, "1M"), (999_700_000, "1G"), (999_950_000_000, "1T")),
    ],
)
def test_sizes_are_short(size: float | None, text: str) -> None:
    assert top_tables.short_size(size) == text


def test_a_pipe_gets_one_word_a_column(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [line.split() for line in shown(monkeypatch, look())]
    assert ["1", "gpu01:0", "9.9", "10.0_ms", "250M", "2_s_ago", "-"] in rows
    assert ["gpu02", "no_answer", *["-"] * 7] in rows


def test_without_a_run_who_holds_which_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    hidden = GPU._replace(processes=(GpuProcess(9, command="[Not Found]"),))
    hosts = (
        HostLook(name="gpu00", usage=usage(1)),
        HostLook(name="gpu01", usage=usage(1, gpus=(hidden,)), xids_error="it may not be read"),
    )
    lines = shown(monkeypatch, look(run=None, late=None, ranks=(), hosts=hosts), 100)
    at = next(number for number, line in enumerate(lines) if "held by" in line)
    assert lines[0] == "no run of this project is live"
    assert lines[at:] == [
        "GPU      held by  run         memory  process",
        "gpu00:0  alice    33n7fac6he  64.2G   7 python train.py",
        "gpu00:1  nobody   -           -       -",
        "gpu01:0  ?        -           -       9 [Not Found]",
        "gpu01: its Xids are not known: it may not be read",
    ]


def test_a_run_that_is_over_and_ranks_that_tell_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    over = look(state="failed", late=None, ranks=(), time_left=None, notices=("run 33n7fac6he is not live: x",))
    lines = shown(monkeypatch, over, 100)
    assert lines[:2] == ["run 33n7fac6he (night): failed", "run 33n7fac6he is not live: x"]
    late = LateRanks(UNDECIDED, reason="too few steps were seen yet")
    lines = shown(monkeypatch, look(late=late, ranks=(pace(0, why="it is stopped (SIGSTOP)", output_ms=None),)), 100)
    assert lines[1] == "who is late is undecided: too few steps were seen yet"
    assert lines[3] == "0     gpu00:0  -        0.0 ms  250M    -       it is stopped (SIGSTOP)"


def test_what_hosts_say_moves_no_cursor_and_sets_no_colour(monkeypatch: pytest.MonkeyPatch) -> None:
    evil = "[red]x[/]\x1b[2J\n\u202e"
    gpu = GPU._replace(processes=(GpuProcess(9, evil, evil, None, evil),))
    hosts = (HostLook(name="gpu00", usage=usage(1, gpus=(gpu,), gpu_error=evil), error=evil),)
    text = "\n".join(shown(monkeypatch, look(run=evil, name=evil, late=None, hosts=hosts, notices=(evil,)), 120))
    assert text.count("[red]x[/]\\x1b[2J\\n\\u202e") >= 5
    assert all(line.isprintable() for line in text.split("\n"))
