"""Check a run's script: where it is, whether Python can start it, whether a sync includes it."""

from __future__ import annotations

import os
import re
import shlex
import sys
import warnings
from pathlib import Path
from typing import TYPE_CHECKING

from clusterddp.errors import ScriptError, SyncError, UsageError
from clusterddp.remote.shared.workdir.manifest import parents
from clusterddp.text.nearest import nearest

if TYPE_CHECKING:
    from collections.abc import Sequence

    from clusterddp.launch.options import RunOptions
    from clusterddp.project.project import Project
    from clusterddp.sync.project_files.project_tree import Tree

_SHELLS = {".sh", ".bash", ".zsh"}
_DATA = {".json", ".yaml", ".yml", ".toml", ".txt"}
_LAUNCHERS = {"torchrun", "accelerate", "deepspeed"}
_LAUNCHER_MODULES = {
    "torch.distributed.run",
    "torch.distributed.launch",
    "accelerate.commands.launch",
    "deepspeed.launcher.runner",
}
_PYTHON = re.compile(r"(?:.*/)?python[0-9.]*")
# Syntax that needs at least this version of Python: an error on such a line may be none for the hosts' Python.
_NEWER_SYNTAX = (
    ((3, 11), re.compile(r"\bexcept\s*\*|\[[^\]]*\*\w")),
    ((3, 12), re.compile(r"^\s*type\s+\w|\b(?:def|class)\s+\w+\s*\[|\b[rR]?[fF][rR]?[\"']")),
    ((3, 14), re.compile(r"\b[rR]?[tT][rR]?[\"']|\bexcept\s+[^:(]+,")),
    ((3, 15), re.compile(r"^\s*lazy\s|[\[({]\s*\*")),
)


def check_script(options: RunOptions, project: Project) -> str:
    """Refuse what Python could not start, before any host is reached; raises UsageError or ScriptError.

    Return the script relative to the workers' cwd; with ``module`` or ``no_sync`` it is returned as it was given.
    """
    _refuse_programs(options, project)
    script = _relative_script(options, project)
    if options.module or options.no_sync or options.again:
        return script
    path = project.root / project.subfolder / script
    source = path.read_bytes()
    if path.suffix in _SHELLS or (path.suffix != ".py" and re.match(rb"#!.*sh\b", source)):
        called = re.search(rb"[\w./-]+\.py\b", source)
        instead = called[0].decode() if called else "the Python script it calls"
        raise UsageError(
            f"script {script} is a shell script; torchrun starts Python programs",
            remedy=f"take {instead} for SCRIPT, and put what the shell script sets into clusterddp_setup or --env",
        )
    _refuse_data(path.suffix, script)
    _check_syntax(source, script)
    return script


def _refuse_data(suffix: str, script: str) -> None:
    """Refuse a notebook and a file of settings: as a program it often does nothing, and succeeds."""
    if suffix == ".ipynb":
        remedy = f"`jupyter nbconvert --to script {shlex.quote(script)}` makes a program of it"
        raise UsageError(f"script {script} is a notebook; torchrun starts Python programs", remedy=remedy)
    if suffix in _DATA:
        remedy = f"write the program before it: train.py {shlex.quote(script)}"
        raise UsageError(f"script {script} is a {suffix} file; torchrun starts Python programs", remedy=remedy)


def _refuse_programs(options: RunOptions, project: Project) -> None:
    """Refuse ``python train.py``, ``torchrun train.py`` and other launchers, and suggest what to write instead."""
    name = options.script
    is_python = bool(_PYTHON.fullmatch(name)) and not options.module
    if not is_python and not _is_launcher(name, module=options.module):
        return
    if not options.module and (project.root / project.subfolder / name).is_file() and "/" not in name:
        return
    starts = "Python" if is_python else "torchrun"
    shown = ("-m " if options.module else "") + name
    args = options.args
    if name == "accelerate" and args[:1] == ("launch",):
        shown, args = "accelerate launch", args[1:]
    replacement = _program(args, may_have_options=not is_python)
    while replacement and (inner := _inner_program(replacement)):
        replacement = inner
    if name == "torch.distributed.launch" and replacement and not {"--use-env", "--use_env"}.intersection(args):
        replacement = ["--pass-local-rank", *replacement]
    raise UsageError(
        f"{shown} is no script: clusterddp starts {starts} itself, on every host",
        remedy=f"write {shlex.join(replacement)}" if replacement else "write the script in its place",
    )


def _is_launcher(name: str, *, module: bool) -> bool:
    return name in _LAUNCHER_MODULES if module else Path(name).name in _LAUNCHERS


def _inner_program(parts: Sequence[str]) -> Sequence[str]:
    """Return what a launcher's module, as in ``python -m torch.distributed.run``, would start; else an empty list."""
    is_launcher = parts[0] == "-m" and _is_launcher(parts[1], module=True)
    return _program(parts[2:], may_have_options=True) if is_launcher else []


def _program(args: Sequence[str], *, may_have_options: bool) -> Sequence[str]:
    """Return the words from the script or ``-m MODULE`` on; empty if there is none."""
    for index, argument in enumerate(args):
        if argument in ("-m", "--module") and args[index + 1 :]:
            return ["-m", *args[index + 1 :]]
        if argument.endswith(".py") or not (may_have_options or argument.startswith("-")):
            return args[index:]
    return []


def _relative_script(options: RunOptions, project: Project) -> str:
    """Return a script of the project relative to the workers' cwd, never as an absolute path of this machine.

    Under ``again`` the project may have lost it since: then only the kept code has to have it.
    """
    if options.module and (not options.script or "/" in options.script or options.script.endswith(".py")):
        raise UsageError(f"-m {options.script!r} is no module's name", remedy="write it as pkg.train, or leave -m out")
    if options.module or options.no_sync:
        return options.script
    cwd = project.root / project.subfolder
    path = cwd / options.script
    if not options.again:
        _refuse_unreadable(path, options.script, cwd)
    absolute = Path(os.path.abspath(path))  # noqa: PTH100 - a link stays the name the user gave
    if not absolute.is_relative_to(project.root):  # by its folder's own path, as the project's is
        absolute = absolute.parent.resolve() / absolute.name
    if not absolute.is_relative_to(project.root):
        raise UsageError(
            f"script {options.script} is outside the project {project.root}", remedy="start from the folder it is in"
        )
    return os.path.relpath(absolute, cwd)


def _refuse_unreadable(path: Path, script: str, cwd: Path) -> None:
    """Refuse a script that is not there or cannot be read; ``script`` is its name as the user gave it."""
    if not path.is_file():
        what = "is a folder" if script and path.is_dir() else "is not there"
        remedy = _suggestion(script, cwd) or f"paths are relative to {cwd}"
        raise UsageError(f"script {script or repr('')} {what}", remedy=remedy)
    if not os.access(path, os.R_OK):
        raise UsageError(f"script {script} cannot be read", remedy="chmod u+r it")


def _suggestion(script: str, cwd: Path) -> str:
    """Suggest a correction for a missing SCRIPT: a quoted command line split up, or a file with a similar name."""
    parts = script.split()
    if len(parts) > 1 and (cwd / parts[0]).is_file():
        return f"write it without the quotes: {script}"
    folder = (cwd / script).parent
    try:
        names = [path.name for path in folder.iterdir() if path.suffix == ".py"]
    except OSError:
        return ""
    name = Path(script).name
    near = f"{name}.py" if f"{name}.py" in names else nearest(name, sorted(names))
    return f"did you mean {Path(script).with_name(near)}?" if near and name else ""


def _check_syntax(source: bytes, script: str) -> None:
    """Refuse syntax errors, unless a newer Python than this one might accept the code: then the hosts decide."""
    if b"\0" in source:  # a zip file with the code in it, or byte code
        return
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            compile(source, script, "exec", dont_inherit=True)
    except SyntaxError as error:
        if _may_be_newer(source, error):
            return
        wrong = f": {error.text.strip()[:80]}" if error.text and error.text.strip() else ""
        raise ScriptError(
            f"{script}:{error.lineno or 1}: {type(error).__name__}: {error.msg}{wrong}", remedy="nothing was started"
        ) from None
    except (ValueError, RecursionError, MemoryError):  # too deeply nested
        return


def _may_be_newer(source: bytes, error: SyntaxError) -> bool:
    """Whether the wrong lines contain syntax introduced after this Python version."""
    first = error.lineno or 1
    last = max(first, error.end_lineno or first)
    lines = source.decode(errors="replace").splitlines()[first - 1 : last]
    return any(
        version > sys.version_info[:2] and pattern.search(line) for version, pattern in _NEWER_SYNTAX for line in lines
    )


def check_synced(options: RunOptions, project: Project, tree: Tree) -> None:
    """Refuse a script that a sync would leave out; raises SyncError if the script is not among the files."""
    if options.module or options.no_sync:
        return
    inside = os.path.normpath(os.path.join(project.subfolder, options.script))  # noqa: PTH118 - a path on hosts
    synced = {entry.path for entry in (*tree.entries, *tree.data)}
    if inside in synced:
        return
    real = os.path.relpath((project.root / inside).resolve(), project.root)
    if real in synced and synced.intersection(parents(inside)):  # below a link that is synced
        return
    reasons = {item.path: item.reason for item in tree.skipped}
    why = next((reasons[path] for path in (inside, *parents(inside)) if path in reasons), "")
    is_ignored = tree.git and not why
    why = why or ("git ignores it" if tree.git else "nothing in that folder ever is")
    remedy = "take it out of .gitignore" if is_ignored else "name another file of the project"
    raise SyncError(f"script {inside} would not be synced: {why}", remedy=remedy)
