"""Where a run works, in words."""

from __future__ import annotations

import pytest

from clusterddp.remote.shared.run.run_record import RunRecord
from clusterddp.runs.run_folders import describe_workdirs, workdir_label

HOME = "/home/u/clusterddp/toy-1a"
OTHER = "/data/toy-1a"


def record(*paths: str, name: str | None = None) -> RunRecord:
    workdirs = {f"gpu{number:02}": path for number, path in enumerate(paths)}
    return RunRecord(hosts=tuple(workdirs), workdir=name, workdirs=workdirs)


@pytest.mark.parametrize(
    ("told", "words", "ending"),
    [
        (record(), "", ""),
        (record(HOME, HOME), HOME, ""),
        (record("/data/a@b", "/data/a@b"), "/data/a@b", ""),
        (record(f"{HOME}@exp1", name="exp1"), f"{HOME}@exp1", "@exp1"),
        (record(HOME, HOME, HOME, OTHER), f"{HOME} on gpu[00:02], {OTHER} on gpu03", ""),
    ],
)
def test_a_runs_folder_is_told_whole_and_by_what_sets_it_apart(told: RunRecord, words: str, ending: str) -> None:
    assert describe_workdirs(told) == words
    assert workdir_label(told) == ending
