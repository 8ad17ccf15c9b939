"""Byte code for hosts says what the sources say, and imports less."""

from __future__ import annotations

import ast
import copy
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest

from clusterddp.hosts import zipapp
from clusterddp.remote.shared.code.byte_code import compile_module, without_types

if TYPE_CHECKING:
    from pathlib import Path

TYPED = """
from typing import TYPE_CHECKING, Any, Dict, Generic, NamedTuple, Optional, TypeVar
if TYPE_CHECKING:
    import nowhere
T = TypeVar("T")
Table = Dict[str, Any]
later: int
known: Table = {"a": 1}

class Point(NamedTuple):
    "A place."
    x: int
    y: Optional[int] = None

    @property
    def sum(self) -> int:
        total: int = self.x + (self.y or 0)
        return total

class Empty:
    field: int

class Box(Generic[T]):
    def __init__(self, value: "nowhere.Thing", *rest: T, key: T = None, **more: T) -> None:
        self.value: T = value

def plain(a: int, /, b: Dict[str, int] = {}) -> Table:
    return dict(b, a=a)
"""


def run(source: str) -> dict[str, Any]:
    names: dict[str, Any] = {"__name__": "typed"}
    exec(compile_module(source.encode(), "typed.py", "clusterddp.remote"), names)
    return names


def test_code_without_types_does_the_same() -> None:
    names = run(TYPED)
    point = names["Point"](1, y=2)
    assert (point, repr(point), point.sum, point._asdict()) == ((1, 2), "Point(x=1, y=2)", 3, {"x": 1, "y": 2})
    assert names["Point"](1) == (1, None)
    assert names["Point"]._field_defaults == {"y": None}
    assert type(point._replace(x=5)) is names["Point"]
    assert (hash(point), copy.copy(point), names["Point"]._make([1, 2])) == (hash((1, 2)), point, point)
    with pytest.raises(ValueError, match="z"):
        point._replace(z=1)
    with pytest.raises(TypeError):
        names["Point"]._make([1])
    with pytest.raises(TypeError):
        names["Point"]()
    with pytest.raises(AttributeError):
        point.z = 1
    assert names["Box"](3, 4, key=5).value == 3
    assert names["plain"](1) == {"a": 1}
    assert names["known"] == {"a": 1}
    assert not hasattr(names["Empty"], "field")


def test_nothing_of_typing_is_left() -> None:
    text = ast.unparse(without_types(ast.parse(TYPED), "clusterddp.remote"))
    assert "typing" not in text
    assert "nowhere" not in text
    assert "->" not in text


def test_lines_in_tracebacks_are_the_sources_own() -> None:
    assert run("from typing import Any\n\n\ndef f(a: Any) -> Any:\n    return a\n")["f"].__code__.co_firstlineno == 4


LOADED = """
import sys
sys.path.insert(0, sys.argv[1])
import {package}.{module}
print(*sys.modules)
"""
# Each takes longer to import than most of our modules take to run.
DEAR = {
    "typing",
    "re",
    "enum",
    "json",
    "hashlib",
    "selectors",
    "signal",
    "traceback",
    "platform",
    "subprocess",
    "socket",
    "shutil",
    "contextlib",
    "functools",
    "importlib",
}


@pytest.mark.parametrize(("module", "needs"), [("helper.loop", set()), ("workdir.sync_operations", set())])
def test_what_every_command_runs_on_a_host_imports_next_to_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, module: str, needs: set[str]
) -> None:
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    path = tmp_path / "remote.pyz"
    path.write_bytes(zipapp._bundle.__wrapped__().code)
    program = LOADED.format(package=zipapp.PACKAGE, module=module)
    argv = [sys.executable, "-I", "-S", "-c", program, str(path)]
    done = subprocess.run(argv, capture_output=True, text=True, check=True)
    assert DEAR & set(done.stdout.split()) == needs
