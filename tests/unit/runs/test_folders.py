"""Where a run works, in words."""

from __future__ import annotations

import pytest

from clusterddp.remote.shared.run_record import RunRecord
from clusterddp.runs.folders import beside, described

HOME = "/home/u/clusterddp/toy-1a"
SIBLING = f"{HOME}~0123456789ab"


def record(*paths: str, name: str | None = None) -> RunRecord:
    workdirs = {f"gpu{number:02}": path for number, path in enumerate(paths)}
    return RunRecord(hosts=tuple(workdirs), workdir=name, workdirs=workdirs)


@pytest.mark.parametrize(
    ("told", "words", "ending"),
    [
        (record(), "", ""),
        (record(HOME, HOME), HOME, ""),
        (record("/data/a@b", "/data/a@b"), "/data/a@b", ""),
        (record(SIBLING), SIBLING, "~0123456789ab"),
        (record(f"{HOME}@exp1", name="exp1"), f"{HOME}@exp1", "@exp1"),
        (record(f"{HOME}@exp1~0123456789ab", name="exp1"), f"{HOME}@exp1~0123456789ab", "@exp1~0123456789ab"),
        (record(HOME, HOME, HOME, SIBLING), f"{HOME} on gpu[00:02], {SIBLING} on gpu03", "~0123456789ab"),
    ],
)
def test_a_runs_folder_is_told_whole_and_by_what_sets_it_apart(told: RunRecord, words: str, ending: str) -> None:
    assert described(told) == words
    assert beside(told) == ending
