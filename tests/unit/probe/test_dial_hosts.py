"""What hosts answer when they look for folders that they share."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from clusterddp.errors import HelperError
from clusterddp.probe.dial_hosts import find_shared_folders


@pytest.mark.parametrize("answer", [5, None, {"folders": 7}])
def test_an_answer_that_names_no_folders_is_an_error_of_its_host(answer: Any) -> None:
    host: Any = SimpleNamespace(name="bad", call=lambda *_, **__: answer)
    (outcome,) = find_shared_folders([host], {"bad": {"state": "/x"}})
    assert isinstance(outcome.error, HelperError)
    assert "bad: its answer is damaged" in str(outcome.error)
