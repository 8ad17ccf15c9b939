"""`logs` from its options to its lines, over streams that are given."""

from __future__ import annotations

import contextlib
import json
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from clusterddp.api.find_runs import attach
from clusterddp.cli import run_lines
from clusterddp.cli.actions import logs_action as logs
from clusterddp.cli.main import main
from clusterddp.errors import RunError
from clusterddp.logs.checked_frames import End
from clusterddp.logs.fold import Fold
from clusterddp.logs.selection import Selection
from clusterddp.runs.view.run_view import RunView, run_views
from tests.unit.cli_help import folder
from tests.unit.logs.test_render import Source
from tests.unit.runs_told import Told

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from clusterddp.logs.checked_frames import LogFrame
    from clusterddp.logs.selection import Position

__all__ = ["folder"]  # fixture

RANKS = 12
END = End(ended=None)


@dataclass
class Run:
    """A run on one host whose ranks have each said the same, and one of them more."""

    id: str = "aaaaaaaaaa"
    attempt: int = 1
    record: Any = field(default_factory=lambda: SimpleNamespace(world_size=RANKS))
    spools: dict[str, str] = field(default_factory=lambda: {"gpu00": "/spool"})
    attempts: dict[int, dict[str, str]] = field(default_factory=dict)

    def hosts_like(self, _pattern: str, _origin: str) -> list[str]:
        return ["gpu00", "spare"]

    def selected(self, _: Selection) -> list[str]:
        return list(self.spools)

    def streams(self, _: Selection) -> Callable[[str, Position], Iterator[LogFrame]]:
        def stream(_host: str, _at: Position) -> Iterator[LogFrame]:
            for rank in range(RANKS):
                text = b"ready\n" if rank != 5 else b"ready\nsaved\n"
                yield Source(rank=rank, local_rank=rank, host="gpu00").frame(text, 0)
            yield END

        return stream


class Clock:
    """Goes on by 0.1 ms with every look: so nothing but the looks decides what has been held for long enough."""

    now = 0.0

    def __call__(self) -> float:
        self.now += 1e-4
        return self.now


def shown(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *words: str) -> list[str]:
    cluster = SimpleNamespace(find=lambda _: Run())
    monkeypatch.setattr("clusterddp.runs.follow.Streams", Run.streams)
    monkeypatch.setattr(logs, "open_cluster", lambda *_: contextlib.nullcontext(cluster))
    clock = Clock()

    def jump(_seconds: float) -> None:
        clock.now += 1

    monkeypatch.setattr(run_lines, "Fold", lambda: Fold(clock))
    monkeypatch.setattr("clusterddp.runs.follow.time.sleep", jump)
    with pytest.raises(SystemExit) as ended:
        main(["logs", *words])
    assert not ended.value.code
    return capsys.readouterr().out.splitlines()


@pytest.mark.usefixtures("folder")
def test_fold_shows_equal_lines_once_and_a_pipe_shows_each_without_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert shown(monkeypatch, capsys, "--fold") == ["[0-11] ready", "[5 gpu00:5] saved"]
    each = [f"[{rank} gpu00:{rank}] ready" for rank in range(RANKS)]
    each.insert(6, "[5 gpu00:5] saved")
    assert shown(monkeypatch, capsys) == shown(monkeypatch, capsys, "--no-fold") == each
    as_json = shown(monkeypatch, capsys, "--fold", "--json")
    assert [json.loads(line)["rank"] for line in as_json] == [*range(6), 5, *range(6, RANKS)]
    monkeypatch.setenv("CLUSTERDDP_FOLD", "1")
    assert len(shown(monkeypatch, capsys)) == 2
    assert shown(monkeypatch, capsys, "--no-fold") == each


@pytest.mark.parametrize("until_passed", [False, True])
def test_the_end_of_a_followed_run_is_told_of_its_last_attempt_unless_it_goes_on_after_until(
    monkeypatch: pytest.MonkeyPatch, *, until_passed: bool
) -> None:
    last, verdict, told = Run(attempt=2), object(), []

    def follower(*_: object) -> SimpleNamespace:
        return SimpleNamespace(run=last, follow=lambda _: verdict, until_passed=until_passed)

    def end(*words: object) -> int:
        told.append(words)
        return 5

    monkeypatch.setattr(logs, "Follower", follower)
    monkeypatch.setattr(logs, "RunWatch", lambda *_, **__: contextlib.nullcontext())
    monkeypatch.setattr(logs, "print_followed_end", end)
    first: Any = Run()
    reader = logs.AttemptReader([first], Selection(follow=True), 0)
    reader.read(lambda _: None, {})
    assert (reader.exit_code(), told) == ((0, []) if until_passed else (5, [(last, verdict)]))


@pytest.mark.parametrize("follow", [False, True])
@pytest.mark.parametrize("attempt", ["all", 1])
def test_lines_of_an_earlier_attempt_are_missing_where_its_host_does_not_answer_now(
    capsys: pytest.CaptureFixture[str], attempt: int | str, *, follow: bool
) -> None:
    """The second attempt is without gpu01, which is off."""
    first, second = (Told(0, hosts=hosts) for hosts in (["gpu00", "gpu01"], ["gpu00"]))
    second.fields.update(attempt=2, spool="/second")
    (view,) = run_views([first.node, second.node], ("gpu01",))
    site: Any = SimpleNamespace(inventory=SimpleNamespace(hosts=(), groups={}))
    run = attach(site, view)
    assert run.spools == {"gpu00": "/second"}
    attempts = logs.select_attempts(run, attempt, 1, follow=False)
    logs._refuse_hosts_without_part(attempts, "gpu01", ["gpu01"])
    reader = logs.AttemptReader([*attempts, run], Selection(follow=follow), 0)
    assert reader.missing_hosts == {"gpu01"}
    assert reader.attempts[0].spools == {"gpu00": first.node.spool}
    assert capsys.readouterr().err == "clusterddp: lines are missing: gpu01\n"
    assert follow or reader.exit_code() == 1
    assert logs.AttemptReader([*attempts, run], Selection(pattern="gpu00"), 0).exit_code() == 0


def _elastic() -> tuple[RunView, ...]:
    """Two of three ranks answer; the host of the third joined later."""
    told = Told(0, workers=2, run="r1", hosts=["gpu00", "gpu01"], world_size=2)
    return tuple(run_views([told.node], ("gpu01",)))


def _relaunched() -> tuple[RunView, ...]:
    """The second attempt has half of the ranks of the first."""
    first = [Told(n, workers=2, run="r1", hosts=["gpu00", "gpu01"], world_size=4) for n in (0, 1)]
    second = Told(0, workers=2, run="r1", hosts=["gpu00"], world_size=2)
    second.fields["attempt"] = 2
    return tuple(run_views([*(one.node for one in first), second.node], ()))


@pytest.mark.parametrize(
    ("views", "ranks", "said"),
    [
        (_elastic, (0, 2), ""),
        (_elastic, (2,), "was not found"),
        (_relaunched, (0, 3), ""),
        (_relaunched, (3,), ""),
        (_relaunched, (4, 5), "has no rank 4"),
    ],
)
def test_ranks_are_refused_only_if_no_attempt_had_one(
    views: Callable[[], Sequence[RunView]], ranks: tuple[int, ...], said: str
) -> None:
    (view,) = views()
    run: Any = SimpleNamespace(id="r1", record=view.record, view=lambda: view)
    expected = pytest.raises(RunError, match=said) if said else contextlib.nullcontext()
    with expected:
        logs._report_missing_ranks(run, ranks)


@pytest.mark.parametrize(
    ("views", "ranks", "said"),
    [
        (_relaunched, (0, 3), ""),
        (_relaunched, (0, 99, 98, 3), "clusterddp: run r1 has no rank 98, 99: only the other ranks are shown\n"),
        (_relaunched, (3, 99), "clusterddp: run r1 has no rank 99: only the other ranks are shown\n"),
        (_elastic, (0, 99), ""),  # the silent host may have had it
    ],
)
def test_ranks_that_no_attempt_had_are_named_beside_those_that_are_there(
    views: Callable[[], Sequence[RunView]], ranks: tuple[int, ...], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (view,) = views()
    run: Any = SimpleNamespace(id="r1", record=view.record, view=lambda: view)
    logs._report_missing_ranks(run, ranks)
    assert capsys.readouterr().err == said


def test_for_ranks_that_the_run_has_from_its_start_no_host_is_asked() -> None:
    run: Any = SimpleNamespace(id="r1", record=SimpleNamespace(world_size=4), view=lambda: pytest.fail("asked"))
    logs._report_missing_ranks(run, (0, 3))
