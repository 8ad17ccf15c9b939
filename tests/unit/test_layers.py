"""The shape of the code: who may import whom, what ships to hosts, how large a file may be.

The tables here are the truth; ARCHITECTURE.md draws the same in words.
"""

from __future__ import annotations

import ast
import functools
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from clusterddp.hosts.zipapp import PACKAGE, bundle
from tests.pythons import interpreter

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "clusterddp"
REMOTE = SOURCE / "remote"
# Of the standard library since Python 3.9; syntax is found where that Python compiles it.
NEWER = re.compile(r"\.remove(?:prefix|suffix)\(|\.is_relative_to\(|\bpairwise\(|\bfunctools\.cache\b|\bstrict=")

# A room imports only from rooms above its own, and a room of `remote/` likewise. Of `remote/` the operator's side
# imports `remote.shared` alone.
OPERATOR = (
    "errors", "remote.shared", "text", "project", "inventory",
    "discover", "logs", "hosts", "facts", "sync", "environments", "runs", "shell", "checks", "probe",
    "launch", "doctor", "provision", "api", "cli",
)  # fmt: skip
HOSTS = (
    "system", "shared", "spool", "rendezvous", "fork_server", "worker", "preload", "control", "helper", "logs",
    "processes", "transfer", "workdir", "user_files", "cleanup", "supervisor", "probes", "environment", "slurm",
    "shell", "builtin",
)  # fmt: skip
FACES = {"__init__", "__main__", "tasks", "fabfile"}  # of the package: they pass on what the rooms hold

# A library → the only rooms, or files of one, that may import it. A type checker may know its names elsewhere.
DOORS = {
    "rich": {"cli/tables"},
    "fabric": {"api/fabfile"},
    "invoke": {"api/fabfile"},
    "paramiko": {"hosts/ssh"},
    "yaml": {"inventory"},
    "click": {"cli"},
    "jinja2": {"text/html_page"},
    "pathspec": {"sync/project_files/gitignore"},
    "cryptography": {"sync/transfer/certificates", "hosts/ssh/key_files"},
    "tomllib": {"project", "environments"},
    "tomli": {"project", "environments"},
    "packaging": {"environments"},
    "torch": {"remote"},
}
# Values in, values out: rooms, or files of one.
PURE = (
    "launch/make_plan",
    *(f"runs/view/{part}" for part in ("known_messages", "verdict_lines", "notices", "run_view")),
    "remote/shared/processes/worker_stacks",
    "remote/shared/collectives",
    "facts",
    "checks",
    "text",
    "doctor/report_html",
    "doctor/explain",
    *(f"discover/{part}" for part in ("message", "outcome", "announcer", "seeker")),
)
HARMLESS = {
    "__future__", "collections", "dataclasses", "enum", "functools", "hashlib", "hmac", "ipaddress",
    "itertools", "jinja2", "json", "math", "re", "shlex", "signal", "statistics", "types", "typing", "unicodedata",
}  # fmt: skip

# Programs of remote/ that the training interpreter runs, so that they may ask for torch, inside a function.
WITH_TORCH = {
    "rendezvous/store.py",
    "probes/scripts/torch_facts.py",
    "probes/scripts/use_gpu.py",
    "builtin/rehearse.py",
    "builtin/bench.py",
}
# Loaded by torch itself, in the agent, so that it may stand on torch; nothing else of ours imports it.
BY_TORCH = {"rendezvous/handler.py"}
# The only absolute imports there: bootstrap.py may have been sent by itself, and runs the zipapp.
BOOTSTRAP = {("system/bootstrap.py", f"{PACKAGE}.{part}") for part in ("__main__", "helper")}
PROGRAMS = {
    "worker/hook/sitecustomize.py",
    "worker/hook/rank_debugger.py",
    "worker/hook/break_in.py",
    "probes/scripts/torch_facts.py",
    "probes/scripts/use_gpu.py",
    "builtin/rehearse.py",
    "builtin/bench.py",
}  # run as files of their own, never imported by ours

MOST_LINES, MOST_FUNCTION_LINES = 400, 60
HOOK = "clusterddp/remote/worker/hook/"  # longer: a worker's Python loads each as one file, without the others


def sources(folder: Path = SOURCE) -> list[Path]:
    found = sorted(path for path in folder.rglob("*.py") if "__pycache__" not in path.parts)
    assert found
    return found


def shown(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


@functools.cache
def parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"), str(path))


def for_type_checkers(path: Path) -> set[int]:
    """The lines below ``if TYPE_CHECKING:``."""
    blocks = [node for node in ast.walk(parsed(path)) if isinstance(node, ast.If)]
    named = [node for node in blocks if isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"]
    return {line for node in named for line in range(node.lineno, (node.body[-1].end_lineno or 0) + 1)}


@functools.cache
def is_module(name: str) -> bool:
    place = ROOT.joinpath(*name.split("."))
    return place.is_dir() or place.with_suffix(".py").is_file()


def imports(path: Path) -> Iterator[tuple[int, int, str]]:
    """Line, level and absolute name of each import, those in functions and for type checkers too."""
    for node in ast.walk(parsed(path)):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, 0, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            parts = ("clusterddp", *path.relative_to(SOURCE).parts[:-1])
            base = parts[: len(parts) - node.level + 1] if node.level else ()
            module = ".".join((*base, *([node.module] if node.module else [])))
            for alias in node.names:
                inside = f"{module}.{alias.name}"
                yield node.lineno, node.level, inside if is_module(inside) else module


def room(module: str) -> str:
    """``remote.shared`` of ``clusterddp.remote.shared.wire.frames``; ``hosts`` of ``clusterddp.hosts.ssh``."""
    parts = module.split(".")[1:]
    return ".".join(parts[: 2 if parts[0] == "remote" else 1]) if parts else ""


def dotted(path: Path) -> str:
    return ".".join(("clusterddp", *path.relative_to(SOURCE).with_suffix("").parts))


def arrows() -> Iterator[tuple[str, str, str]]:
    """(room, room that it imports, where) for each import of ours that leaves its room."""
    for path in sources():
        own = room(dotted(path))
        for line, _, module in imports(path):
            if module.startswith("clusterddp.") and room(module) != own:
                yield own, room(module), f"{shown(path)}:{line} imports {module}"


def test_every_room_has_its_place_in_the_table() -> None:
    listed = {*OPERATOR, *(f"remote.{name}" for name in HOSTS)}
    faces = {face if not inside else f"{inside}.{face}" for face in FACES for inside in ("", "remote")}
    assert {room(dotted(path)) for path in sources()} - faces == listed


@pytest.mark.parametrize(("order", "prefix"), [(OPERATOR, ""), (HOSTS, "remote.")], ids=["operator", "hosts"])
def test_a_room_imports_only_from_above(order: tuple[str, ...], prefix: str) -> None:
    place = {prefix + name: number for number, name in enumerate(order)}
    wrong = [where for own, other, where in arrows() if own in place and other in place and place[other] > place[own]]
    assert wrong == []


def test_the_operators_side_imports_of_remote_what_is_shared_alone() -> None:
    outside = [where for own, other, where in arrows() if not own.startswith("remote") and other.startswith("remote.")]
    assert [where for where in outside if "clusterddp.remote.shared" not in where] == []


def test_no_module_imports_itself_in_a_circle() -> None:
    names = {
        dotted(path).removesuffix(".__init__"): path
        for path in sources()
        if path.parent != SOURCE or path.stem not in FACES
    }
    graph = {
        name: {found for _, _, module in imports(path) if (found := module) in names and found != name}
        for name, path in names.items()
    }
    while leaves := {name for name, below in graph.items() if not below & set(graph)}:
        graph = {name: below for name, below in graph.items() if name not in leaves}
    assert sorted(graph) == []  # what is left imports itself, or something that does


def in_room(path: Path, names: set[str]) -> bool:
    """Whether a file stands in one of these rooms, folders or files, named as below ``clusterddp/``."""
    own = path.relative_to(SOURCE).with_suffix("").as_posix()
    return any(own == name or own.startswith(f"{name}/") for name in names)


def test_a_library_has_one_door() -> None:
    wrong = [
        f"{shown(path)}:{line} imports {module}"
        for path in sources()
        for line, level, module in imports(path)
        if not level
        if line not in for_type_checkers(path)
        if module.split(".")[0] in DOORS and not in_room(path, DOORS[module.split(".")[0]])
    ]
    assert wrong == []


@pytest.mark.parametrize("name", PURE)
def test_a_pure_room_can_do_no_input_or_output(name: str) -> None:
    files = [path for path in sources() if in_room(path, {name})]
    assert files
    used = {
        module.split(".")[0]
        for path in files
        for _, level, module in imports(path)
        if not level and not module.startswith("clusterddp")
    }
    assert used <= HARMLESS
    calls = [node for path in files for node in ast.walk(parsed(path)) if isinstance(node, ast.Call)]
    assert not {"open", "print", "input"} & {call.func.id for call in calls if isinstance(call.func, ast.Name)}


def test_remote_imports_itself_relatively_and_else_only_the_standard_library() -> None:
    known = sys.stdlib_module_names
    wrong = []
    for path in sources(REMOTE):
        name = path.relative_to(REMOTE).as_posix()
        for line, level, module in imports(path):
            allowed = module.startswith("clusterddp.remote") if level else module.split(".")[0] in known
            with_torch = module.split(".")[0] == "torch" and name in WITH_TORCH | BY_TORCH
            if not (allowed or with_torch or (name, module) in BOOTSTRAP):
                wrong.append(f"{shown(path)}:{line} imports {module}")
    assert wrong == []


def test_remote_asks_for_torch_only_inside_functions() -> None:
    for name in sorted(WITH_TORCH):
        at_import = [node for node in parsed(REMOTE / name).body if isinstance(node, (ast.Import, ast.ImportFrom))]
        assert "torch" not in "".join(ast.unparse(node) for node in at_import)


def test_what_torch_loads_is_imported_inside_functions_only() -> None:
    for name in sorted(BY_TORCH):
        module = "clusterddp.remote." + name.removesuffix(".py").replace("/", ".")
        for path in sources():
            at_import = [node.lineno for node in parsed(path).body if isinstance(node, (ast.Import, ast.ImportFrom))]
            assert not [line for line, _, imported in imports(path) if imported == module and line in at_import]


def test_remote_has_the_syntax_of_python_3_8() -> None:
    for path in sources(REMOTE):
        ast.parse(path.read_text(encoding="utf-8"), shown(path), feature_version=(3, 8))


@pytest.fixture(scope="module")
def zipapp(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What hosts get, the very bytes."""
    path = tmp_path_factory.mktemp("zipapp") / "remote.pyz"
    path.write_bytes(bundle().code)
    return path


def modules_of_remote() -> list[str]:
    names = [path.relative_to(REMOTE).as_posix() for path in sources(REMOTE)]
    plain = [name for name in names if name not in PROGRAMS | BY_TORCH]
    dotted = [name.removesuffix(".py").removesuffix("/__init__").replace("/", ".") for name in plain]
    return [f"{PACKAGE}.{name}" for name in dotted if name != "__init__"]


# Each module alone in a list, all in one child, with no site-packages: what is not in the standard library is missing.
IMPORT_ALL = """
import importlib, sys
sys.path.insert(0, sys.argv[1])
for name in sys.argv[2:]:
    importlib.import_module(name)
outside = [name for name, module in sys.modules.items() if "site-packages" in (getattr(module, "__file__", "") or "")]
sys.exit("from site-packages: %s" % outside if outside else 0)
"""


def imported_by(python: str, zipapp: Path) -> subprocess.CompletedProcess[str]:
    argv = [python, "-I", "-S", "-W", "error", "-c", IMPORT_ALL, str(zipapp), *modules_of_remote()]
    return subprocess.run(argv, capture_output=True, text=True, check=False, env=dict(os.environ, LC_ALL="C"))


def test_every_module_of_the_zipapp_imports_without_site_packages(zipapp: Path) -> None:
    done = imported_by(sys.executable, zipapp)
    assert (done.returncode, done.stderr) == (0, "")


def test_the_zipapp_runs_without_site_packages(zipapp: Path) -> None:
    argv = [sys.executable, "-I", "-S", str(zipapp), "nothing"]
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (2, "", "no such role: 'nothing'\n")


def test_every_module_of_the_zipapp_imports_under_python_3_8(zipapp: Path) -> None:
    python = interpreter("3.8")
    done = imported_by(python, zipapp)
    assert (done.returncode, done.stderr) == (0, "")
    program = (
        f"import sys; sys.path[0] = sys.argv[1]; import {PACKAGE}.helper.own_code as own; own.compile_code(sys.argv[1])"
    )
    subprocess.run([python, "-I", "-S", "-c", program, str(zipapp)], check=True)
    (own,) = zipapp.parent.glob("remote-*.pyz")  # its own byte code
    done = imported_by(python, own)
    assert (done.returncode, done.stderr) == (0, "")


def test_host_code_calls_nothing_of_the_library_that_python_3_8_lacks() -> None:
    texts = {shown(path): path.read_text(encoding="utf-8") for path in sources(REMOTE)}
    assert {name: found for name, text in texts.items() if (found := NEWER.findall(text))} == {}


@pytest.mark.parametrize("name", sorted(PROGRAMS | BY_TORCH))
def test_a_program_of_remote_compiles_under_python_3_8(name: str) -> None:
    python = interpreter("3.8")
    text = (REMOTE / name).read_text(encoding="utf-8")
    argv = [python, "-I", "-c", "import sys; compile(sys.stdin.read(), 'program', 'exec')"]
    done = subprocess.run(argv, input=text, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_no_file_is_too_long() -> None:
    files = [*sources(), *sources(ROOT / "tests"), *sources(ROOT / "examples")]
    lengths = {shown(path): len(path.read_text(encoding="utf-8").splitlines()) for path in files}
    assert {name: count for name, count in lengths.items() if count > MOST_LINES and not name.startswith(HOOK)} == {}


def test_no_function_is_too_long() -> None:
    long = [
        f"{shown(path)}:{node.lineno} {node.name}"
        for path in [*sources(), *sources(ROOT / "tests")]
        for node in ast.walk(parsed(path))
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))
        and (node.end_lineno or 0) - node.lineno + 1 > MOST_FUNCTION_LINES
    ]
    assert long == []


def test_every_file_says_what_it_is_for() -> None:
    silent = [shown(path) for path in sources() if not ast.get_docstring(parsed(path))]
    assert silent == []
