"""What `from clusterddp import …` offers: every type of the public calls, at no cost before it is used."""

from __future__ import annotations

import ast
import builtins
import collections.abc
import inspect
import subprocess
import sys
import typing
from typing import TYPE_CHECKING, Any

import clusterddp
from clusterddp import errors
from clusterddp.launch.options import RunOptions
from clusterddp.runs.run import Run
from clusterddp.runs.view.run_view import run_views
from tests.api_page import VALUES, members
from tests.unit.runs_told import BEGAN, Told

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

KEYWORDS = ("ClusterKeywords", "DoctorKeywords", "ExecKeywords", "RunKeywords", "Words")
KNOWN = {*dir(builtins), *dir(typing), *dir(collections.abc), "Path"}
ALIASES = {"Reports", "Self"}  # of typing since Python 3.11


def written_types(owner: Any) -> Iterator[str]:
    for value in owner.__annotations__.values():
        yield value if isinstance(value, str) else getattr(value, "__forward_arg__", getattr(value, "__name__", "None"))


def types_of(annotation: str) -> set[str]:
    """The last names of the types in an annotation: ``HostEntry`` of ``list[inventory.HostEntry]``."""
    tree = ast.parse(annotation, mode="eval")
    modules = {node.value for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    names = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name) and node not in modules}
    return names | {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)}


def test_every_type_that_a_public_call_takes_or_returns_is_imported_from_the_top() -> None:
    calls = [method for cls in (clusterddp.Cluster, clusterddp.Run) for _, method in members(cls)]
    owners = [*calls, clusterddp.Cluster.__init__, *(getattr(clusterddp, name) for name in KEYWORDS)]
    named = set().union(*(types_of(text) for owner in owners for text in written_types(owner)))
    assert "Proof" in named
    assert "HostReport" in named
    assert named - KNOWN - ALIASES <= set(clusterddp.__all__)
    assert {cls.__name__ for cls in (*VALUES, RunOptions)} <= set(clusterddp.__all__)


def test_every_error_is_imported_from_the_top() -> None:
    found = {name: cls for name, cls in vars(errors).items() if inspect.isclass(cls) and issubclass(cls, Exception)}
    assert found["ClusterddpError"] is clusterddp.ClusterddpError
    assert all(getattr(clusterddp, name) is cls for name, cls in found.items())


def test_every_name_is_the_thing_of_that_name() -> None:
    for name in set(clusterddp.__all__) - {"__version__"}:
        assert getattr(clusterddp, name).__name__ == name
    assert set(clusterddp.__all__) <= set(dir(clusterddp))
    assert not hasattr(clusterddp, "Nonsense")


def test_the_import_of_the_package_imports_no_module_of_it() -> None:
    line = "import sys; before = {*sys.modules}; import clusterddp; print(*sorted({*sys.modules} - before))"
    done = subprocess.run([sys.executable, "-c", line], check=True, capture_output=True, text=True, timeout=60)
    assert [name for name in done.stdout.split() if name.startswith("clusterddp")] == ["clusterddp"]


def test_a_cluster_and_a_run_print_as_what_they_are_on_a_line(tmp_path: Path) -> None:
    inventory = tmp_path / "inventory.yaml"
    inventory.write_text("all: {hosts: {gpu00: , gpu01: }}\n")
    cluster = clusterddp.Cluster.from_inventory(inventory, project=tmp_path)
    assert repr(cluster) == f"<Cluster of 2 hosts from {inventory}, project {tmp_path}>"
    told = [Told(rank, run="5q92uwxd8z", name="night", hosts=["gpu00", "gpu01"], started=BEGAN) for rank in range(2)]
    for one in told:
        one.fields["spool"] = "/home/alice/.clusterddp/runs/5q92uwxd8z/1/0-gpu00"
    (view,) = run_views([one.node for one in told])
    run = cluster.attach(view)
    assert repr(run) == "<Run 5q92uwxd8z (night), attempt 1 on gpu00, gpu01>"
    unplaced = Run(cluster, "5q92uwxd8z", 1, {}, view.record, secrets={"TOKEN": "hunter2"})
    assert repr(unplaced) == "<Run 5q92uwxd8z (night), attempt 1 on no host>"
