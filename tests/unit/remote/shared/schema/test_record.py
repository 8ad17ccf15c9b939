"""A record's class says all of it: what each field is, how it is read, whether it may be missing."""

from __future__ import annotations

import ast
import importlib
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest
from hypothesis import given

import clusterddp
from clusterddp.remote.shared.code.byte_code import compile_module
from clusterddp.remote.shared.schema.fields import DamagedError, Fields
from clusterddp.remote.shared.schema.record import (
    MAX_LENGTH,
    bulk,
    by_key,
    checked,
    field,
    many,
    maybe,
    nested,
    one_of,
    read_record,
    readers_of,
    record,
    to_fields,
)
from tests.unit.json_values import VALUES

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping


@record
class Port(NamedTuple):
    number: int = field(Fields.number)
    name: str = field(one_of("store", "control"), default="store")


@record
class Machine(NamedTuple):
    name: str = field(checked(str.isalpha, "letters"))
    error: str | None = field(Fields.maybe_text)
    port: Port | None = field(maybe(nested(Port)), default=None)
    ports: tuple[Port, ...] = field(many(Port), default=())
    labels: Mapping[str, str] = field(by_key(Fields.text), default={})
    more: Mapping[str, Any] = {}


PORT = {"number": 3, "name": "control"}
MACHINE = {"name": "a", "error": "no", "port": PORT, "ports": [PORT, PORT], "labels": {"b": "c"}, "newer": [1]}


def test_a_record_is_read_and_written_as_its_class_says() -> None:
    machine = read_record(Machine, MACHINE, "machine")
    port = Port(3, "control")
    assert machine == Machine("a", "no", port, (port, port), {"b": "c"}, {"newer": [1]})
    assert to_fields(machine) == MACHINE


def test_a_field_with_a_default_may_be_missing_and_no_other() -> None:
    assert read_record(Machine, {"name": "a", "error": None}, "machine") == Machine("a", None)
    assert Machine("a", None)[2:] == (None, (), {}, {})
    with pytest.raises(DamagedError, match=r"machine\.error is not there"):
        read_record(Machine, {"name": "a"}, "machine")
    with pytest.raises(TypeError, match="error"):
        Machine("a")


@pytest.mark.parametrize("name", MACHINE)
@given(value=VALUES)
def test_whatever_a_field_holds_a_record_is_read_or_the_one_error_raised(name: str, value: Any) -> None:
    try:
        read_record(Machine, {**MACHINE, name: value}, "machine")
    except DamagedError as error:
        assert str(error).startswith(f"machine.{name}")  # noqa: PT017 - either is right


def test_a_class_whose_declaration_is_incomplete_is_refused() -> None:
    class Unread(NamedTuple):
        name: str = ""

    class Behind(NamedTuple):
        name: str = field(Fields.text, default="")
        number: int = field(Fields.number)

    with pytest.raises(TypeError, match="Unread has a field without a reader"):
        record(Unread)
    with pytest.raises(TypeError, match="Behind has a field without a default behind one"):
        record(Behind)


@record
class Listing(NamedTuple):
    names: list[str] = bulk(Fields.long_texts)
    ports: list[Any] = bulk(Fields.long_list, default=[])


def test_a_long_list_is_read_and_written_as_it_is() -> None:
    ports, names = [Port(1), [2]], ["a"] * (MAX_LENGTH + 1)
    assert to_fields(Listing(names, ports))["ports"] is ports
    read = read_record(Listing, {"names": names}, "listing")
    assert (read.names, read.ports) == (names, [])
    wrongs: list[Any] = [7, {}, [1], ["a", None]]
    for wrong in wrongs:
        with pytest.raises(DamagedError, match=r"listing\.names is not a list"):
            read_record(Listing, {"names": wrong}, "listing")


SOURCE = """
from typing import Any, Mapping, NamedTuple, Tuple
from clusterddp.remote.shared.schema.fields import Fields
from clusterddp.remote.shared.schema.record import field, read_record, record

@record
class Thing(NamedTuple):
    number: int = field(Fields.number)
    names: Tuple[str, ...] = field(Fields.texts, default=())
    more: Mapping[str, Any] = {}
"""


def test_byte_code_of_hosts_reads_it_alike() -> None:
    names: dict[str, Any] = {"__name__": "made"}
    exec(compile_module(SOURCE.encode(), "made.py", "clusterddp.remote"), names)
    thing = names["Thing"]
    read = read_record(thing, {"number": 1, "later": 2}, "thing")
    assert (read, read._asdict()) == ((1, (), {"later": 2}), {"number": 1, "names": (), "more": {"later": 2}})
    assert [*readers_of(thing)] == ["number", "names"]
    with pytest.raises(TypeError):
        thing()


PACKAGE = Path(clusterddp.__path__[0])


def records() -> Iterator[Any]:
    """The records of all modules of hosts."""
    for path in sorted(PACKAGE.rglob("remote/**/*.py")):
        text = path.read_text(encoding="utf-8")
        for node in ast.parse(text).body if "\n@record\n" in text else ():
            if isinstance(node, ast.ClassDef) and any(ast.unparse(one) == "record" for one in node.decorator_list):
                module = ".".join(("clusterddp", *path.relative_to(PACKAGE).with_suffix("").parts))
                yield getattr(importlib.import_module(module), node.name)


def missing(call: ast.Call, kind: Any) -> set[str]:
    """The fields without a default that a call leaves out; none where it unpacks something."""
    if any(isinstance(one, ast.Starred) for one in call.args) or any(one.arg is None for one in call.keywords):
        return set()
    known = {*kind._fields[: len(call.args)], *(one.arg for one in call.keywords)}
    return {*kind._fields} - {*kind._field_defaults} - known


def foreign_project(tree: ast.Module, kinds: Mapping[str, Any]) -> set[str]:
    """The names of records that a file gives to a class of another module, which is called the same."""
    taken = [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) and node.module]
    named = [(alias.name, str(node.module).rpartition(".")[2]) for node in taken for alias in node.names]
    return {name for name, home in named if name in kinds and kinds[name].__module__.rpartition(".")[2] != home}


def test_every_call_of_a_record_gives_the_fields_that_have_no_default() -> None:
    kinds = {kind.__name__: kind for kind in records()}
    assert {"ExitRecord", "NodePlan", "VerdictPart"} <= {*kinds}
    seen, wrong = set(), []
    for path in PACKAGE.rglob("*.py"):
        tree = ast.parse(path.read_bytes())
        others = foreign_project(tree, kinds)
        for node in ast.walk(tree):
            called = ast.unparse(node.func) if isinstance(node, ast.Call) else ""
            name = called.rpartition(".")[2]
            if isinstance(node, ast.Call) and name in kinds and called not in {"ast.Call", *others}:
                seen.add(name)
                wrong += [f"{path}:{node.lineno} {name}: {one}" for one in missing(node, kinds[name])]
    assert not wrong
    assert {"StopOrder", "NodePlan", "VerdictPart"} <= seen
    assert missing(ast.parse("NodeStatus()", mode="eval").body, kinds["NodeStatus"]) == {"state", "attempt"}  # type: ignore[arg-type]
