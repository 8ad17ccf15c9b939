"""Values of the Python API that cannot be meant."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from clusterddp.api import find_runs
from clusterddp.errors import UsageError
from clusterddp.runs.run import Run

if TYPE_CHECKING:
    from collections.abc import Callable

NOWHERE: Any = None
NUMBER: Any = 5
RUN = Run(NOWHERE, "r1", 1, spools={}, record=NOWHERE)


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda: RUN.logs(host=NUMBER), "host: 5 is no text; write a host's name or a pattern"),
        (lambda: RUN.signal(NUMBER), "5 is no signal that a script is told by"),
        (lambda: RUN.stacks([0.5]), r"\[0\.5\] is no list of ranks; write 0,2-5"),  # type: ignore[list-item]
        (lambda: find_runs.find(NOWHERE, NUMBER), "reference: 5 is no text"),
        (lambda: find_runs.diff(NOWHERE, "r1", NUMBER), "b: 5 is no text"),
    ],
)
def test_a_value_that_cannot_be_meant_is_refused_at_the_call(call: Callable[[], object], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        call()


def test_the_stacks_of_one_rank_need_no_list(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Run, "latest", lambda run: run)
    assert RUN.stacks(NUMBER) == []
