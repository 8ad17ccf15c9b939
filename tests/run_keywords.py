"""`python -m tests.run_keywords` writes launch/options/run_keywords.py: the keywords of `Cluster.run`, as declared."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path

from clusterddp.launch import options
from clusterddp.launch.options import BESIDE_KEYWORDS, DECLARED, RunOptions

MODULE = Path(options.__file__).with_name("run_keywords.py")
HEAD = '''"""The keywords of ``Cluster.run``; `python -m tests.run_keywords` makes this file from ``RunOptions``."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypedDict

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping


class RunKeywords(TypedDict, total=False):
    """The keywords of ``Cluster.run``: the command line's options by their names, with ``_`` for ``-``."""

'''


def module() -> str:
    """The file as the declarations have it."""
    taken = {one.name: DECLARED[one.name].accepts or one.type for one in fields(RunOptions)}
    return HEAD + "".join(f"    {name}: {kind}\n" for name, kind in taken.items() if name not in BESIDE_KEYWORDS)


if __name__ == "__main__":
    MODULE.write_text(module(), encoding="utf-8")
