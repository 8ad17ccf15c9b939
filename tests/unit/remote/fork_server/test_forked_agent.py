"""What a forked agent prepares before torchrun's main function runs in it."""

from __future__ import annotations

import inspect
import sys
from types import ModuleType
from typing import TYPE_CHECKING, Any

from clusterddp.remote.fork_server.forked_agent import spare_module_search

if TYPE_CHECKING:
    from collections.abc import Callable

    import pytest

FOREIGN = "/nonexistent/remote.pyz/clusterddp_remote/fork_server/server.py"  # a file of no module in sys.modules
CALL = "def call(act, depth): return call(act, depth - 1) if depth else act()"


class Searched(ModuleType):
    """A module that counts how often it was looked at for its file."""

    count = 0

    def __getattribute__(self, name: str) -> Any:
        Searched.count += name == "__file__"
        return super().__getattribute__(name)


def below_foreign_frames(act: Callable[[], int]) -> int:
    """Call ``act`` under twelve frames of a file that belongs to no module."""
    names: dict[str, Any] = {"__name__": "clusterddp_remote.fork_server.server"}
    exec(compile(CALL, FOREIGN, "exec"), names)
    return int(names["call"](act, 11))


def count_searches() -> int:
    """How often one ``inspect.stack()`` searches all modules."""
    inspect.stack()
    Searched.count = 0
    frames = inspect.stack()
    assert [frame.function for frame in frames].count("call") == 12
    return Searched.count


def spared_searches() -> int:
    spare_module_search()
    return count_searches()


def test_a_stack_below_the_fork_servers_frames_searches_no_modules(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "searched_for_its_file", Searched("searched_for_its_file"))
    monkeypatch.setattr(inspect, "modulesbyfile", {})
    assert below_foreign_frames(count_searches) >= 12
    assert below_foreign_frames(spared_searches) == 0
