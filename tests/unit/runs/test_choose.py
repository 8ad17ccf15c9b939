"""Which run a command means, and whose runs it may end."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from clusterddp.errors import RunError, UsageError
from clusterddp.runs.choose import Requester, choose_run
from clusterddp.runs.view.run_view import RunView, run_views
from tests.unit.runs.view.test_run_view import holding, kept, made, one, seen

if TYPE_CHECKING:
    from collections.abc import Iterator

ME = Requester(operator="alice@desk", project="p1")


def test_a_long_history_costs_no_walk_through_all_runs_and_hosts_for_each_of_its_runs() -> None:
    walks: list[str] = []

    class Walked(tuple[str, ...]):
        __slots__ = ()

        def __iter__(self) -> Iterator[str]:
            walks.append("hosts")
            return super().__iter__()

    class WalkedRuns(dict[str, Any]):
        def __iter__(self) -> Iterator[str]:
            walks.append("runs")
            return super().__iter__()

    def walked(count: int) -> list[str]:
        walks.clear()
        record = made("r1")[0].node.record
        begun = [record._replace(run=f"r{number}") for number in range(count)]
        assert len(run_views([], Walked(("gpu00", "gpu01")), WalkedRuns(), begun)) == count
        return list(walks)

    assert walked(9) == walked(1)


class TestChoose:
    found = seen(
        *(told.succeeded(5) for told in made("abc1", name="base", started=1, project="p1")),
        *(told.succeeded(5) for told in made("abd2", name="base", started=2, project="p1")),
        *made("xyz3", name="abc1", started=3, project="p1"),
    )

    @pytest.mark.parametrize(
        ("reference", "run"), [("abc1", "abc1"), ("abd", "abd2"), ("base", "abd2"), ("x", "xyz3"), (None, "xyz3")]
    )
    def test_an_id_a_prefix_a_name_or_the_live_one(self, reference: str | None, run: str) -> None:
        assert choose_run(self.found, reference, ME, ending=True).run == run

    def test_for_reading_the_last_one_serves(self) -> None:
        ended = self.found[:2]
        assert choose_run(ended, None, ME).run == "abd2"
        with pytest.raises(RunError, match="no run is live"):
            choose_run(ended, None, ME, ending=True)

    def test_several_live_ones_are_listed(self) -> None:
        live = seen(*made("r1", name="one", started=1, project="p1"), *made("r2", started=2, project="p1"))
        with pytest.raises(
            RunError, match=r"several runs are live: r1 \(one\), r2; name one, or `clusterddp stop --all`"
        ):
            choose_run(live, None, ME, ending=True)
        assert choose_run(live, None, ME).run == "r2"

    def test_a_run_that_is_over_but_goes_on_at_a_host_that_was_cut_off_is_ended_where_none_is_live(self) -> None:
        first, cut_off = made("r1", project="p1")
        stopped = holding(first, kept(first.stopped(9, "by another command"), missing=("gpu01",)))
        over = seen(stopped, cut_off)
        assert [(view.live, view.unended, view.goes_on) for view in over] == [(False, ["gpu01"], True)]
        assert choose_run(over, None, ME, ending=True).run == "r1"
        live = seen(*made("r2", started=1, project="p1"))
        assert choose_run([*over, *live], None, ME, ending=True).run == "r2"
        assert (live[0].unended, live[0].goes_on) == ([], True)

    def test_which_of_several_live_ones_was_taken_for_reading_is_said_with_the_names_of_the_others(self) -> None:
        live = seen(*made("r1", name="one", started=1, project="p1"), *made("r2", started=2, project="p1"))
        said: list[str] = []
        assert choose_run(live, None, ME, notify=said.append).run == "r2"
        assert choose_run(live, "one", ME, notify=said.append).run == "r1"
        assert choose_run(live[:1], None, ME, notify=said.append).run == "r1"
        assert choose_run(self.found, None, ME, notify=said.append).run == "xyz3"
        assert said == ["run r2, the newest of 2 that are live; name another: r1 (one)"]

    @pytest.mark.parametrize("reference", [None, "base", "xyz"])
    def test_a_long_history_costs_no_comparison_of_each_run_with_all_others(
        self, reference: str | None, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def refuse(_one: object, _other: object) -> bool:
            raise AssertionError("two runs are compared")

        monkeypatch.setattr(RunView, "__eq__", refuse)
        theirs = seen(*made("bob1", started=4, operator="bob@desk", project="p2"))
        assert choose_run([*self.found, *theirs], reference, ME).run == ("abd2" if reference == "base" else "xyz3")

    def test_of_a_run_and_an_array_of_one_name_the_newest_is_meant(self) -> None:
        array = [*made("r0", name="sweep.0", array="q1", started=5), *made("r1", name="sweep.1", array="q1", started=5)]
        older = [told.succeeded(5) for told in made("old1", name="sweep", started=1, project="p1")]
        with pytest.raises(RunError, match="sweep is an array of 2 runs"):
            choose_run(seen(*older, *array), "sweep", ME, ending=True)
        newer = made("new1", name="sweep", started=9, project="p1")
        assert choose_run(seen(*older, *array, *newer), "sweep", ME).run == "new1"

    @pytest.mark.parametrize("ending", [True, False])
    def test_the_name_of_an_array_is_not_taken_for_the_beginning_of_an_id(self, *, ending: bool) -> None:
        array = [made(f"r{index}", name=f"ab.{index}", array="q1", started=1, project="p1") for index in (1, 2)]
        others = [made("abc1", started=2, project="p1"), made("abd1", started=3, operator="bob@desk", project="p2")]
        for found in (seen(*array[0], *array[1], *each) for each in others):
            with pytest.raises(RunError, match=r"ab is an array of 2 runs; name one of them: ab\.1"):
                choose_run(found, "ab", ME, ending=ending)

    def test_a_prefix_of_several_and_an_unknown_one(self) -> None:
        with pytest.raises(RunError, match=r"'ab' is the beginning of several runs: abc1 \(base\), abd2 \(base\)"):
            choose_run(self.found, "ab", ME)
        with pytest.raises(RunError, match="no run 'nope' on these hosts"):
            choose_run(self.found, "nope", ME)
        with pytest.raises(RunError, match="no run on these hosts"):
            choose_run([], None, ME)

    @pytest.mark.parametrize("ending", [True, False])
    def test_an_empty_name_is_refused_though_it_begins_every_id(self, *, ending: bool) -> None:
        with pytest.raises(UsageError, match="the name of a run is empty; name one, or leave it out"):
            choose_run(self.found[:1], "", ME, ending=ending)


class TestOwner:
    """Whose run may be ended by a name, a prefix, or no word at all."""

    mine = made("mine1", started=1, project="p1")
    clone = made("clone1", started=4, project="p9", label="toy")
    from_my_laptop = made("lap1", name="base", started=2, operator="alice@laptop", project="p1")
    theirs = made("bob1", name="night", started=3, operator="bob@desk", project="p2")

    def test_started_by_the_same_user_on_the_same_machine_or_of_the_same_project(self) -> None:
        assert [ME.owns(one(*told)) for told in (self.mine, self.from_my_laptop, self.theirs)] == [True, True, False]
        nobody = Requester(operator="carol@desk", project=None)
        assert not nobody.owns(one(*made("old", operator="bob@desk", project=None)))

    def test_theirs_is_no_candidate(self) -> None:
        found = seen(*self.mine, *self.theirs)
        assert choose_run(found, None, ME, ending=True).run == "mine1"
        assert choose_run(found, None, ME).run == "mine1"

    @pytest.mark.parametrize("word", ["night", "bob", "bob1"])
    def test_a_name_a_prefix_or_an_id_finds_theirs_for_reading(self, word: str) -> None:
        assert choose_run(seen(*self.mine, *self.theirs), word, ME).run == "bob1"

    def test_for_reading_mine_comes_before_theirs_of_the_same_name(self) -> None:
        found = seen(*made("mine2", name="night", started=0, project="p1"), *self.theirs)
        assert choose_run(found, "night", ME).run == "mine2"

    @pytest.mark.parametrize("project", ["p1", None])
    def test_without_a_word_a_run_of_another_project_is_never_read(self, project: str | None) -> None:
        told = (
            "no run of this project; others on these hosts: clone1 of alice@desk in toy, bob1 of bob@desk; name the one"
        )
        with pytest.raises(RunError, match=told):
            choose_run(seen(*self.theirs, *self.clone), None, Requester(operator="alice@desk", project=project))

    @pytest.mark.parametrize("word", ["night", "bob"])
    def test_a_name_or_a_prefix_does_not_reach_theirs_but_the_full_id_does(self, word: str) -> None:
        found = seen(*self.mine, *self.from_my_laptop, *self.theirs)
        with pytest.raises(RunError, match="bob1 is a run of bob@desk; its full id stops it all the same"):
            choose_run(found, word, ME, ending=True)
        assert choose_run(found, "bob1", ME, ending=True).run == "bob1"
        assert choose_run(found, "base", ME, ending=True).run == "lap1"

    def test_of_theirs_the_newest_of_that_name_is_the_one_told_of(self) -> None:
        with pytest.raises(RunError, match="bob1 is a run of bob@desk"):
            choose_run(
                seen(*made("bob0", name="night", started=1, operator="bob@desk", project="p2"), *self.theirs),
                "night",
                ME,
                ending=True,
            )

    def test_a_name_that_both_have_is_mine(self) -> None:
        found = seen(*self.theirs, *made("mine2", name="night", started=0, project="p9"))
        assert choose_run(found, "night", ME, ending=True).run == "mine2"

    def test_without_a_live_one_of_mine_theirs_are_named(self) -> None:
        told = "no run of this project is live here, but bob1 of bob@desk; a full id stops it"
        with pytest.raises(RunError, match=told):
            choose_run(seen(*self.theirs), None, ME, ending=True)

    def test_without_a_word_only_what_runs_lists_is_ended_though_another_clones_run_is_mine_too(self) -> None:
        told = "no run of this project is live here, but clone1 of alice@desk in toy; a full id"
        with pytest.raises(RunError, match=told):
            choose_run(seen(*self.clone), None, ME, ending=True)
        assert choose_run(seen(*self.mine, *self.clone), None, ME, ending=True).run == "mine1"
        assert choose_run(seen(*self.mine, *self.clone), "clone1", ME, ending=True).run == "clone1"
