"""docs/python-api.md as the code has it: `python -m tests.api_page` writes its tables anew between their marks.

Tables are made from signatures and docstrings: a method's row is its first paragraph, a run's option's what
it declares, another option's the line about it.
"""

from __future__ import annotations

import inspect
import re
from dataclasses import MISSING, fields, is_dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from clusterddp.api.cluster import Cluster
from clusterddp.checks.model import CheckResult, Diagnosis
from clusterddp.errors import ClusterddpError
from clusterddp.launch.host_report import HostReport
from clusterddp.launch.options import DECLARED, RunOptions
from clusterddp.launch.options.keywords import ClusterKeywords, ExecKeywords
from clusterddp.logs.lines import LogLine
from clusterddp.logs.selection import Selection
from clusterddp.remote.shared.processes.worker_stacks import WorkerStack
from clusterddp.runs.cleanup import Cleaned, Orphans
from clusterddp.runs.named_workdirs import WorkdirBeside
from clusterddp.runs.proof import Proof
from clusterddp.runs.run import Run
from clusterddp.runs.stopped_ranks import PdbMessage, PdbSession, StoppedRank
from clusterddp.runs.top_looks import TopLook
from clusterddp.runs.view.run_view import RunView
from clusterddp.runs.view.verdict_lines import Verdict
from clusterddp.runs.watch_hosts import Top
from clusterddp.runs.why import Why
from clusterddp.shell import Command, Executed
from clusterddp.sync.result import HostSync, SyncResult

if TYPE_CHECKING:
    from collections.abc import Iterator

PAGE = Path(__file__).parents[1] / "docs" / "python-api.md"
VALUES = (
    HostReport, Diagnosis, CheckResult, RunView, Verdict, LogLine, Selection, Proof, Cleaned, Orphans, WorkerStack,
    Command, Executed, WorkdirBeside, SyncResult, HostSync, Why, Top, TopLook,
    StoppedRank, PdbSession, PdbMessage,
)  # fmt: skip


def first_paragraph(thing: object) -> str:
    """A docstring's first paragraph on one line, in Markdown."""
    return markdown(inspect.cleandoc(inspect.getdoc(thing) or "").split("\n\n")[0])


def markdown(text: str) -> str:
    return " ".join(text.split()).replace("``", "`").replace("|", "\\|")


def members(cls: type) -> Iterator[tuple[str, Any]]:
    """Its public methods, in the order of the source; what its bases have comes last."""
    own: dict[str, Any] = {}
    for one in cls.__mro__:
        own = {**own, **{name: value for name, value in vars(one).items() if name not in own}}
    for name, value in own.items():
        method = value.__func__ if isinstance(value, classmethod) else value
        if not name.startswith("_") and inspect.isfunction(method):
            yield name, method


def call(name: str, method: Any, prefix: str = "") -> str:
    """``name(arguments) → what``, as written in the source."""
    signature = inspect.signature(method)
    signature = signature.replace(parameters=list(signature.parameters.values())[1:])  # without the object, or class
    return prefix + name + re.sub(r"(: |-> )'([^']*)'", r"\1\2", str(signature))


def methods(cls: type) -> str:
    rows = []
    for name, method in members(cls):
        prefix = f"{cls.__name__}." if isinstance(vars(cls).get(name), classmethod) else ""
        written = call(name, method, prefix).replace("|", "\\|")
        rows.append(f"| `{written}` | {first_paragraph(method)} |")
    return "\n".join(["| call | what |", "|---|---|", *rows])


def described(cls: type) -> dict[str, str]:
    """The lines of a docstring's ``Attributes:``, by name."""
    text = inspect.cleandoc(cls.__doc__ or "").partition("Attributes:\n")[2]
    found = re.findall(r"^ {4}(\w+): (.*(?:\n {8,}.*)*)", text, re.MULTILINE)
    return {name: markdown(line) for name, line in found}


def options() -> str:
    rows = ["| option | type | default | meaning |", "|---|---|---|---|"]
    for one in fields(RunOptions):
        declared = DECLARED[one.name]
        written = (declared.accepts or str(one.type)).replace("|", "\\|")
        default = "" if one.default is MISSING and one.default_factory is MISSING else f"`{default_of(one)!r}`"
        rows.append(f"| `{one.name}` | `{written}` | {default} | {markdown(declared.doc)} |")
    return "\n".join(rows)


def keywords(cls: Any) -> str:
    rows = ["| option | type | meaning |", "|---|---|---|"]
    for name, said in described(cls).items():
        written = cls.__annotations__[name].__forward_arg__.replace("|", "\\|")
        rows.append(f"| `{name}` | `{written}` | {said} |")
    return "\n".join(rows)


def default_of(field: Any) -> object:
    return field.default if field.default is not MISSING else field.default_factory()


def values() -> str:
    rows = ["| value | what | has |", "|---|---|---|"]
    for cls in sorted(VALUES, key=lambda kind: kind.__name__):
        names = [one.name for one in fields(cls)] if is_dataclass(cls) else list(getattr(cls, "_fields", ()))
        names += [name for name, value in vars(cls).items() if isinstance(value, property) and not name.startswith("_")]
        names += [f"{name}()" for name, _ in members(cls)]
        rows.append(f"| `{cls.__name__}` | {first_paragraph(cls)} | {', '.join(f'`{name}`' for name in names)} |")
    return "\n".join(rows)


def errors() -> str:
    def below(cls: type, depth: int) -> Iterator[str]:
        yield f"{'  ' * depth}- `{cls.__name__}`: {first_paragraph(cls)}"
        one: type
        for one in cls.__subclasses__():
            if one.__module__ == ClusterddpError.__module__:
                yield from below(one, depth + 1)

    return "\n".join(below(ClusterddpError, 0))


TABLES = {
    "cluster": lambda: methods(Cluster),
    "run": lambda: methods(Run),
    "options": options,
    "cluster options": lambda: keywords(ClusterKeywords),
    "exec options": lambda: keywords(ExecKeywords),
    "values": values,
    "errors": errors,
}


def current(page: str) -> str:
    """The page with its tables as the code has them.

    Raises:
        ValueError: a table's marks are not there.
    """
    for name, table in TABLES.items():
        begin, end = f"<!-- {name} -->\n", f"<!-- end of {name} -->\n"
        before, _, rest = page.partition(begin)
        _, found, after = rest.partition(end)
        if not found:
            raise ValueError(f"{PAGE}: no place for {name}")
        page = before + begin + "\n" + table() + "\n\n" + end + after
    return page


if __name__ == "__main__":
    PAGE.write_text(current(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
